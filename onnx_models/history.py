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
    fault    key, name, title: signatures
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from onnx_models import runs
from onnx_models.cache import sha256_of
from onnx_models.history_tables import TABLES, convert
from onnx_models.outcomes import SuiteError, UsageError
from onnx_models.records import RecordError

if TYPE_CHECKING:
    import duckdb

LAYOUT = 1
"""Raised when the tables change: older databases are then made anew."""

BATCH = 16
"""Files that are converted by one query: enough for every thread, few enough for 2 GB."""

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
        self.connection = _open(self.database)
        self._synchronise(found)

    def close(self) -> None:
        """Let go of the database."""
        self.connection.close()

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The answer to a query."""
        return self.connection.execute(query, list(parameters)).fetchall()

    def records(self, query: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The same by column name."""
        answer = self.connection.execute(query, list(parameters))
        names = [column[0] for column in answer.description]
        return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The answer to a query of a user.

        Raises:
            UsageError: it is wrong, or would change something.
        """
        import duckdb

        try:
            statements = duckdb.extract_statements(query)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise UsageError("--sql takes one SELECT")
            return self.records(query)
        except duckdb.Error as error:
            raise UsageError(f"--sql: {str(error).splitlines()[0]}") from None

    def _synchronise(self, found: Sequence[Path]) -> None:
        """Take in new files, take out those that changed or went."""
        known = dict(self.rows("SELECT file, sha256 FROM run"))
        present = {path.name: path for path in found}
        fresh = {name: sha256_of(path) for name, path in present.items()}
        gone = [name for name, digest in known.items() if fresh.get(name) != digest]
        new = [present[name] for name, digest in sorted(fresh.items()) if known.get(name) != digest]
        if gone:
            for table, key in (("result", "run"), ("device", "run"), ("run", "key")):
                self.connection.execute(
                    f"DELETE FROM {table} WHERE {key} IN (SELECT key FROM run WHERE list_contains(?, file))",
                    [gone],
                )
        for start in range(0, len(new), BATCH):
            self._load(new[start : start + BATCH], fresh)
        if gone or new:
            self._order()

    def _load(self, files: Sequence[Path], digests: dict[str, str]) -> None:
        """Convert files; where one of several cannot be, each by itself."""
        import duckdb

        try:
            self.connection.execute("BEGIN")
            convert(self.connection, files, digests)
            self.connection.execute("COMMIT")
        except (duckdb.DataError, duckdb.IOException, duckdb.IntegrityError, RecordError) as error:
            self.connection.execute("ROLLBACK")
            if len(files) > 1:
                for file in files:
                    self._load([file], digests)
            else:
                self.broken[files[0].name] = _explain(files[0], error)

    def _order(self) -> None:
        """Give each run its position, and find those that only fill in what an older release does."""
        rows = self.rows("SELECT key, release, started FROM run ORDER BY started, id")
        newest: Any = None
        trend: dict[int, bool] = {}
        for key, release, _ in rows:
            version = version_key(release)
            trend[key] = newest is None or version >= newest
            newest = version if newest is None else max(newest, version)
        ordered = sorted(rows, key=lambda row: (version_key(row[1]), row[2], row[0]))
        values = [(position, trend[row[0]], row[0]) for position, row in enumerate(ordered)]
        if values:
            self.connection.executemany("UPDATE run SET position = ?, trend = ? WHERE key = ?", values)


def version_key(release: str) -> tuple[int, Version, str]:
    """Sorts releases by age; a build without a version comes after all of them, by name."""
    try:
        return 0, Version(release), ""
    except InvalidVersion:
        return 1, Version("0"), release


def _open(database: Path) -> duckdb.DuckDBPyConnection:
    try:
        import duckdb
    except ImportError:
        raise UsageError("history needs DuckDB: pip install 'onnx-models[dashboard]'") from None
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            with suppress(duckdb.Error):
                connection = duckdb.connect(str(database))
                _limit(connection, database.parent)
                if _made_for_this(connection):
                    return connection
                connection.close()
            # Of another layout, of another DuckDB, or damaged: all of it can be derived again.
            database.unlink(missing_ok=True)
            database.with_name(database.name + ".wal").unlink(missing_ok=True)
    except OSError as error:
        raise SuiteError(f"{database}: cannot be written ({error.strerror})") from None
    raise SuiteError(f"{database}: cannot be opened: another process is using it; wait for it, or remove it")


def _limit(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"SET threads = {min(os.cpu_count() or 1, 8)}")
    connection.execute("SET memory_limit = '1GB'")
    connection.execute("SET preserve_insertion_order = false")
    connection.execute("SET temp_directory = ?", [str(folder / "spill")])


def _made_for_this(connection: duckdb.DuckDBPyConnection) -> bool:
    tables = connection.execute("SELECT count(*) FROM duckdb_tables()").fetchone()
    if tables == (0,):
        connection.execute(TABLES)
        connection.execute("INSERT INTO layout VALUES (?)", [LAYOUT])
        return True
    return connection.execute("SELECT number FROM layout").fetchall() == [(LAYOUT,)]


def _explain(file: Path, error: Exception) -> str:
    """Why a file was not taken, in the words of the strict reader where it finds the fault too."""
    try:
        runs.read(file)
    except SuiteError as told:
        return str(told)
    text = str(error)
    if "Constraint" in text or "Duplicate key" in text:
        return f"{file.name}: a run of its id is there already"
    return f"{file.name}: {text.splitlines()[0][:300]}"
