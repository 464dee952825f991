"""Cases that did not do the same twice under one build."""

from __future__ import annotations

from collections.abc import Iterator

from onnx_models.dashboard.render import Site, model_page
from onnx_models.dashboard.site import Page

LISTED = 300

_QUERY = """
WITH told AS (
    SELECT subject.id, subject.collection || '/' || subject.model AS model, run.key AS run, run.iree,
           run.release, run.position, result.machine, state, stage, kind, fault.name AS fault,
           verdict = 'flaky' AS flaky,
           CASE WHEN verdict = 'flaky' THEN 'flaky within a run'
                WHEN state = 'failed' THEN stage || ': ' || coalesce(fault.name, kind)
                ELSE state::TEXT END AS words
    FROM result JOIN run ON run.key = result.run JOIN subject ON subject.key = result.subject
        LEFT JOIN fault ON fault.key = result.fault
    WHERE state IN ('passed', 'vacuous', 'failed'))
SELECT id, model, max(release), count(DISTINCT run), list_sort(list(DISTINCT words))
FROM told GROUP BY id, model, iree, machine
HAVING count(DISTINCT (state, stage, kind, fault)) > 1 OR bool_or(flaky)
ORDER BY max(position) DESC, id, machine
"""


def pages(site: Site) -> Iterator[Page]:
    """`flakes.html`."""
    # Several runs of one build are few; without them nothing can be seen to differ.
    repeated = site.history.rows(
        """SELECT 1 FROM run GROUP BY iree HAVING count(*) > 1
           UNION ALL SELECT 1 FROM (SELECT 1 FROM result WHERE verdict = 'flaky' LIMIT 1)"""
    )
    rows = site.history.rows(_QUERY) if repeated else []
    yield site.page(
        "flakes.html",
        "flakes.html",
        rows=[
            {
                "id": case,
                "page": model_page(model),
                "release": release,
                "runs": runs,
                "results": "; ".join(results),
            }
            for case, model, release, runs, results in rows[:LISTED]
        ],
        more=max(0, len(rows) - LISTED),
    )
