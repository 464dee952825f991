"""The tables of the history, and how a run file becomes rows of them: one query per table.

DuckDB parses the lines itself and in parallel; a run of 19,200 cases has 60 MB of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_models.record_lines import LINE_LIMIT
from onnx_models.records import SCHEMA_VERSION, RecordError

if TYPE_CHECKING:
    import duckdb

TABLES = """
CREATE TYPE state AS ENUM ('passed', 'vacuous', 'failed', 'skipped', 'error', 'missing');
CREATE TABLE layout(number INTEGER);
CREATE TABLE run(
    key INTEGER PRIMARY KEY, id TEXT UNIQUE, file TEXT, sha256 TEXT, started TIMESTAMP, finished TIMESTAMP,
    release TEXT, iree TEXT, suite TEXT, catalogue TEXT, machine TEXT, host TEXT, cpu TEXT, cores INTEGER,
    url TEXT, shard TEXT, complete BOOLEAN, broken TEXT, cases INTEGER, position INTEGER, trend BOOLEAN,
    stat TEXT);
CREATE TABLE device(run INTEGER, name TEXT, title TEXT, last_stage TEXT, driver TEXT);
CREATE TABLE subject(key INTEGER PRIMARY KEY, id TEXT UNIQUE, model TEXT, collection TEXT, device TEXT);
CREATE TABLE fault(key INTEGER PRIMARY KEY, name TEXT UNIQUE, title TEXT);
CREATE TABLE titled(run INTEGER, fault INTEGER, title TEXT);
CREATE TABLE result(
    run INTEGER, subject INTEGER, state state, verdict TEXT, stage TEXT, kind TEXT, fault INTEGER,
    import_s FLOAT, compile_s FLOAT, run_s FLOAT, peak_bytes BIGINT, mlir_bytes BIGINT, vmfb_bytes BIGINT,
    ratio FLOAT, latency_s FLOAT, peer_s FLOAT, fresh BOOLEAN, machine TEXT);
"""

# What is read of a line; everything else is left where it is. Types that differ are an error of the file.
_COLUMNS = {
    "type": "VARCHAR",
    "schema": "INTEGER",
    "run": "VARCHAR",
    "started": "TIMESTAMPTZ",
    "finished": "TIMESTAMPTZ",
    "release": "VARCHAR",
    "iree": "VARCHAR",
    "suite": "VARCHAR",
    "catalogue": "VARCHAR",
    "host": "STRUCT(name VARCHAR, cpu VARCHAR, cores INTEGER, fingerprint VARCHAR)",
    "url": "VARCHAR",
    "shard": "VARCHAR",
    "devices": "MAP(VARCHAR, STRUCT(title VARCHAR, last_stage VARCHAR, driver VARCHAR))",
    "complete": "BOOLEAN",
    "host_broken": "VARCHAR",
    "cases": "INTEGER",
    "id": "VARCHAR",
    "model": "VARCHAR",
    "collection": "VARCHAR",
    "device": "VARCHAR",
    "verdict": "VARCHAR",
    "stage": "VARCHAR",
    "kind": "VARCHAR",
    "signature": "VARCHAR",
    "title": "VARCHAR",
    "vacuous": "VARCHAR",
    "machine": "VARCHAR",
    "stages": "STRUCT(stage VARCHAR, ok BOOLEAN, seconds FLOAT, peak_bytes BIGINT, product_bytes BIGINT, "
    "reused BOOLEAN)[]",
    "outputs": "STRUCT(ratio DOUBLE)[]",
    "benchmark": "STRUCT(iree STRUCT(median_s DOUBLE), onnxruntime STRUCT(median_s DOUBLE))",
}

# As `states.state`; a meta-test holds the two against each other.
_STATE = """
CASE WHEN verdict = 'skipped' THEN 'skipped'
     WHEN kind IS NULL AND verdict = 'error' THEN 'error'
     WHEN kind IS NULL AND coalesce(vacuous, '') <> '' THEN 'vacuous'
     WHEN kind IS NULL THEN 'passed'
     WHEN kind IN ('infrastructure', 'reference-unhealthy') OR stage IN ('fetch', 'reference') THEN 'error'
     ELSE 'failed' END
"""


def _seconds(stage: str) -> str:
    # Of a stage that failed, the time says when it gave up, not what it takes.
    return f"list_filter(stages, lambda s: s.stage = '{stage}' AND s.ok)[1].seconds"


_RESULTS = f"""
INSERT INTO result SELECT run.key, subject.key, {_STATE}, verdict, line.stage, kind, fault.key,
    {_seconds("import")}, {_seconds("compile")}, {_seconds("run")},
    list_max(list_transform(stages, lambda s: s.peak_bytes)),
    list_filter(stages, lambda s: s.stage = 'import')[1].product_bytes,
    list_filter(stages, lambda s: s.stage = 'compile')[1].product_bytes,
    list_max(list_transform(outputs, lambda o: o.ratio)),
    benchmark.iree.median_s, benchmark.onnxruntime.median_s,
    NOT coalesce(list_bool_or(list_transform(list_filter(stages, lambda s: s.stage IN ('compile', 'run')),
                                             lambda s: s.reused)), false),
    coalesce(line.machine, run.machine)
FROM line JOIN run USING (file) JOIN subject ON subject.id = line.id
    LEFT JOIN fault ON fault.name = line.signature
WHERE type = 'case'
"""


def convert(connection: duckdb.DuckDBPyConnection, files: Iterable[Path], digests: Mapping[str, str]) -> None:
    """Read run files into the tables.

    Raises:
        duckdb.Error: a line is no JSON, or has another type than the schema says.
        RecordError: a file has no header or footer, or another number of cases.
    """
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in _COLUMNS.items())
    connection.execute("DROP TABLE IF EXISTS line")
    connection.execute(
        f"""CREATE TEMP TABLE line AS SELECT *, parse_filename(filename) AS file FROM read_json(
            ?, format = 'newline_delimited', columns = {{{columns}}}, filename = true,
            hive_partitioning = false, maximum_object_size = {LINE_LIMIT})""",
        [[str(file) for file in files]],
    )
    _check(connection, files)
    connection.execute(
        # A page links to `url`: a file that nobody checked may hold a script there.
        """INSERT INTO run SELECT
            (SELECT coalesce(max(key), -1) FROM run) + row_number() OVER (ORDER BY h.started, h.run),
            h.run, h.file, '', h.started, f.finished, coalesce(h.release, h.iree), h.iree, h.suite,
            h.catalogue, coalesce(h.host.fingerprint, ''), h.host.name, h.host.cpu, h.host.cores,
            CASE WHEN regexp_full_match(h.url, 'https?://[!-~]+') THEN h.url ELSE '' END,
            coalesce(h.shard, ''), f.complete, coalesce(f.host_broken, ''), f.cases, 0, true, ''
           FROM line h JOIN line f USING (file) WHERE h.type = 'header' AND f.type = 'footer'"""
    )
    connection.executemany(
        "UPDATE run SET sha256 = ? WHERE file = ?", [(digests[file.name], file.name) for file in files]
    )
    connection.execute(
        """INSERT INTO device SELECT run.key, d.key, d.value.title, d.value.last_stage, d.value.driver
           FROM (SELECT file, unnest(map_entries(devices)) AS d FROM line WHERE type = 'header')
           JOIN run USING (file)"""
    )
    connection.execute(
        """INSERT INTO subject SELECT (SELECT coalesce(max(key), -1) FROM subject)
            + row_number() OVER (ORDER BY id), *
           FROM (SELECT id, min(model), min(collection), min(device) FROM line
                 WHERE type = 'case' AND id NOT IN (SELECT id FROM subject) GROUP BY id)"""
    )
    connection.execute(
        """INSERT INTO fault SELECT (SELECT coalesce(max(key), -1) FROM fault)
            + row_number() OVER (ORDER BY name), name, ''
           FROM (SELECT DISTINCT signature AS name FROM line WHERE type = 'case' AND signature <> ''
                 AND signature NOT IN (SELECT name FROM fault))"""
    )
    connection.execute(
        """INSERT INTO titled SELECT run.key, fault.key, max(coalesce(line.title, ''))
           FROM line JOIN run USING (file) JOIN fault ON fault.name = line.signature
           WHERE type = 'case' GROUP BY ALL"""
    )
    connection.execute(_RESULTS)
    connection.execute("DROP TABLE line")


def _check(connection: duckdb.DuckDBPyConnection, files: Iterable[Path]) -> None:
    answer = connection.execute(
        """SELECT file, count(*) FILTER (type = 'header'), count(*) FILTER (type = 'footer'),
                  count(*) FILTER (type = 'case'), max(cases), max(schema),
                  count(*) FILTER (coalesce(type, '') NOT IN ('header', 'case', 'footer')
                                   OR type = 'header' AND (run IS NULL OR started IS NULL OR suite IS NULL
                                   OR coalesce(release, iree) IS NULL)
                                   OR type = 'case' AND (id IS NULL OR model IS NULL OR device IS NULL
                                   OR collection IS NULL OR verdict IS NULL
                                   OR id <> device || '/' || collection || '/' || model)),
                  count(DISTINCT id)
           FROM line GROUP BY file"""
    )
    found = {row[0]: row[1:] for row in answer.fetchall()}
    for file in files:
        headers, footers, cases, counted, schema, nameless, distinct = found.get(file.name, (0,) * 7)
        if headers != 1 or schema is None or schema < 1 or nameless or distinct != cases:
            raise RecordError(f"{file.name}: no record file")
        if schema > SCHEMA_VERSION:
            raise RecordError(f"{file.name}: schema {schema}: update onnx-models")
        if footers != 1 or counted != cases:
            raise RecordError(f"{file.name}: cut off, or joined from several")
