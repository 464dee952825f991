"""All runs of a folder as tables to ask: DuckDB over the run files, converted once each.

The run files are the truth. The database beside them (`.derived/history.duckdb`) can be
deleted at any time; it is made anew, and a file that changed or went is taken out.

Tables:
    run      key, id, file, sha256, started, finished (UTC), release, iree, suite, catalogue, machine
             (fingerprint), host, cpu, cores, url, shard, complete, broken, cases, position (age of the
             release, then start), trend (whether no newer release ran before it: not a back-fill)
    device   run, name, title, last_stage, driver: what a run set out to test
    subject  key, id, model, collection, device: a case over all runs
    result   run, subject, state, verdict, stage, kind, fault, import_s, compile_s, run_s, peak_bytes,
             mlir_bytes, vmfb_bytes, ratio (worst error in units of the tolerated noise), latency_s,
             peer_s (onnxruntime's latency), fresh (timed in this run), machine
    fault    key, name, title (as the newest run has it): signatures
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout

from onnx_models import runs
from onnx_models.files import sha256_of
from onnx_models.history_tables import TABLES, convert
from onnx_models.outcomes import SuiteError, UsageError
from onnx_models.records import RecordError
from onnx_models.versions import version_key

if TYPE_CHECKING:
    import duckdb
    from numpy.typing import NDArray

LAYOUT = 5
"""Raised when the tables change: older databases are then made anew."""

BATCH = 16
"""Files that are converted by one query: enough for every thread, few enough for 2 GB."""

SETTLED = 2.0
"""Seconds after which a second change of a file would have another time; a year of runs takes 6 s to hash."""

PATIENCE = 300.0
"""Seconds to wait for another process that uses the database; converting a year of runs takes 80."""

STATES = ("passed", "vacuous", "failed", "skipped", "error", "missing")


class History:
    """The runs of one folder.

    Args:
        folder: the run files.
        database: where the derived tables lie; `folder/.derived/history.duckdb` unless given.

    Raises:
        RecordError: there is no such folder.
        UsageError: DuckDB is not installed.
    """

    def __init__(self, folder: Path, *, database: Path | None = None) -> None:
        self.folder = folder
        self.broken: dict[str, str] = {}
        """Files that could not be read, and why."""
        found = runs.files(folder)
        self.database = database or folder / ".derived" / "history.duckdb"
        if find_spec("duckdb") is None:
            raise UsageError("history needs DuckDB: pip install 'onnx-models[dashboard]'")
        self._lock = FileLock(f"{self.database}.lock", timeout=PATIENCE, thread_local=False)
        try:
            self.database.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            self.connection = _open(self.database)
            with self._told():
                self._synchronise(found)
        except Timeout:
            raise SuiteError(
                f"{self.database}: another process is using it; try again when it is done"
            ) from None
        except OSError as error:
            self._lock.release()
            raise SuiteError(
                f"{self.database}: cannot be written ({error.strerror}); copy the runs to one that can be"
            ) from None
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Let go of the database."""
        self.connection.close()
        self._lock.release()

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The answer to a query."""
        with self._told():
            return self._answer(query, parameters).fetchall()

    def records(self, query: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The same by column name."""
        with self._told():
            return _named(self._answer(query, parameters))

    def columns(self, query: str, parameters: Sequence[Any] = ()) -> dict[str, NDArray[Any]]:
        """The same as an array per column: millions of numbers; none may be NULL."""
        with self._told():
            answer = self._answer(query, parameters).fetchnumpy()
        return {name: np.asarray(column) for name, column in answer.items()}

    def _answer(self, query: str, parameters: Sequence[Any] = ()) -> duckdb.DuckDBPyConnection:
        """A cursor of its own for each, so that one thread may ask while another reads."""
        return self.connection.cursor().execute(query, list(parameters))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """The database's own faults, such as a full disk, in one line; Ctrl-C as what it is."""
        import duckdb

        try:
            yield
        except duckdb.Error as error:
            raise _fault(self.database, error) from None
        except RuntimeError as error:
            if "interrupted" in str(error):  # what DuckDB makes of Ctrl-C in a query
                raise KeyboardInterrupt from None
            raise

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The answer to a query of a user.

        Raises:
            UsageError: it is wrong, or would change something.
        """
        import duckdb

        try:
            query.encode()
        except UnicodeEncodeError:
            raise UsageError("--sql: not UTF-8") from None
        try:
            statements = duckdb.extract_statements(query)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise UsageError("--sql takes one SELECT")
            # The tables are what a query may see, not the files of this machine; this cannot be undone.
            self.connection.execute("SET enable_external_access = false")
            answer = self._answer(query)
            names = [column[0] for column in answer.description]
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise UsageError(f"--sql: two columns are called {twice!r}: name them with AS")
            return _named(answer)
        except duckdb.Error as error:
            raise UsageError(f"--sql: {str(error).splitlines()[0]}") from None

    def _synchronise(self, found: Sequence[Path]) -> None:
        """Take in new files, take out those that changed or went."""
        rows = self.rows("SELECT file, sha256, stat FROM run")
        known = {file: digest for file, digest, _ in rows}
        unchanged = {(file, stat): digest for file, digest, stat in rows if stat}
        present = {path.name: path for path in found}
        stats = {path.name: _stat(path) for path in found}
        with ThreadPoolExecutor(2) as pool:
            digests = pool.map(
                lambda path: unchanged.get((path.name, stats[path.name])) or sha256_of(path), found
            )
            fresh = dict(zip(present, digests, strict=True))
        gone = [name for name, digest in known.items() if fresh.get(name) != digest]
        new = [present[name] for name, digest in sorted(fresh.items()) if known.get(name) != digest]
        if gone:
            for table, key in (("result", "run"), ("device", "run"), ("titled", "run"), ("run", "key")):
                self.connection.execute(
                    f"DELETE FROM {table} WHERE {key} IN (SELECT key FROM run WHERE list_contains(?, file))",
                    [gone],
                )
        for start in range(0, len(new), BATCH):
            self._load(new[start : start + BATCH], fresh)
        if gone or new:
            self._order()
        settled = [(stat, name) for name, stat in stats.items() if stat and (name, stat) not in unchanged]
        if settled:
            self.connection.executemany("UPDATE run SET stat = ? WHERE file = ?", settled)

    def _load(self, files: Sequence[Path], digests: dict[str, str]) -> None:
        """Convert files; where one of several cannot be, each by itself."""
        import duckdb

        try:
            self.connection.execute("BEGIN")
            convert(self.connection, files, digests)
        except (duckdb.Error, RecordError) as error:
            self.connection.execute("ROLLBACK")
            if len(files) > 1:
                for file in files:
                    self._load([file], digests)
            else:
                self.broken[files[0].name] = self._explain(files[0], error)
        else:
            self.connection.execute("COMMIT")

    def _explain(self, file: Path, error: Exception) -> str:
        """Why a file was not taken, in the words of the strict reader where it finds the fault too.

        Raises:
            SuiteError: the fault is not the file's.
        """
        import duckdb

        try:
            runs.read(file)
        except SuiteError as told:
            return str(told)
        if isinstance(error, (duckdb.IOException, duckdb.OutOfMemoryException)):
            raise _fault(self.database, error)
        if isinstance(error, duckdb.ConstraintException):
            return f"{file.name}: a run of its id is there already"
        return f"{file.name}: {str(error).splitlines()[0][:300]}"

    def _order(self) -> None:
        """Give each run its position, and find those that only fill in what an older release does."""
        rows = self.rows("SELECT key, release, started, id FROM run ORDER BY started, id")
        newest: Any = None
        trend: dict[int, bool] = {}
        age: dict[int, Any] = {}
        for key, release, *_ in rows:
            version = version_key(release)
            # A build without a version is as old as the newest release when it ran: no later one is older.
            age[key] = (newest or (-1, version[1], "")) if version[0] else version
            trend[key] = newest is None or age[key] >= newest
            if not version[0]:
                newest = version if newest is None else max(newest, version)
        ordered = sorted(rows, key=lambda row: (age[row[0]], *row[2:]))
        keys = [row[0] for row in ordered]
        # One statement: a year of them one by one takes a third of a second.
        self.connection.execute(
            """UPDATE run SET position = made.position, trend = made.trend
               FROM (SELECT unnest(?::INTEGER[]) AS key, unnest(?::INTEGER[]) AS position,
                            unnest(?::BOOLEAN[]) AS trend) AS made WHERE run.key = made.key""",
            [keys, list(range(len(keys))), [trend[key] for key in keys]],
        )
        self.connection.execute(
            """UPDATE fault SET title = coalesce((
                SELECT arg_max(titled.title, run.position) FROM titled JOIN run ON run.key = titled.run
                WHERE titled.fault = fault.key), '')"""
        )


def _stat(path: Path) -> str:
    """What a file that was not touched has kept, as git tells it; nothing for one that just changed.

    The time of the last change of an inode cannot be set, unlike that of the last modification.
    """
    found = path.stat()
    if time.time() - found.st_ctime < SETTLED:
        return ""
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"


def _open(database: Path) -> duckdb.DuckDBPyConnection:
    """The database, made anew where it is of another layout or DuckDB, or damaged: all of it is derived."""
    import duckdb

    last: Exception | None = None
    for _ in range(2):
        connection = None
        try:
            connection = duckdb.connect(str(database))
            _limit(connection, database.parent)
            if _made_for_this(connection):
                return connection
        except duckdb.Error as error:
            last = error
        if connection is not None:
            connection.close()
        database.unlink(missing_ok=True)
        database.with_name(f"{database.name}.wal").unlink(missing_ok=True)
    raise _fault(database, last)


def _fault(database: Path, error: Exception | None) -> SuiteError:
    why = str(error or "of another layout").splitlines()[0][:300]
    return SuiteError(
        f"{database}: cannot be used ({why}); free some space, or remove {database.parent}, and try again"
    )


def _named(answer: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    names = [column[0] for column in answer.description]
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]


def _limit(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"SET threads = {min(os.cpu_count() or 1, 8)}")
    connection.execute("SET memory_limit = '1GB'")
    connection.execute("SET preserve_insertion_order = false")
    connection.execute("SET temp_directory = ?", [str(folder / "spill")])
    # A checkpoint goes over the whole file: seconds, after each run that is added to a year of them.
    connection.execute("SET checkpoint_threshold = '64MB'")
    connection.execute("PRAGMA disable_checkpoint_on_shutdown")


def _made_for_this(connection: duckdb.DuckDBPyConnection) -> bool:
    tables = connection.execute("SELECT count(*) FROM duckdb_tables()").fetchone()
    if tables == (0,):
        connection.execute(TABLES)
        connection.execute("INSERT INTO layout VALUES (?)", [LAYOUT])
        return True
    return connection.execute("SELECT number FROM layout").fetchall() == [(LAYOUT,)]
