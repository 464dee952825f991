"""Cases that did not do the same twice under one build."""

from __future__ import annotations

from collections.abc import Iterator

from onnx_models.dashboard.render import Site, model_page
from onnx_models.dashboard.site import Page

LISTED = 300

_QUERY = """
SELECT subject.id, subject.collection || '/' || subject.model, run.iree, any_value(run.release),
       count(DISTINCT run.key),
       string_agg(DISTINCT CASE WHEN verdict = 'flaky' THEN 'flaky within a run'
                           WHEN state = 'failed' THEN stage || ': ' || coalesce(fault.name, kind)
                           ELSE state::TEXT END, '; ' ORDER BY 1)
FROM result JOIN run ON run.key = result.run JOIN subject ON subject.key = result.subject
    LEFT JOIN fault ON fault.key = result.fault
WHERE state IN ('passed', 'vacuous', 'failed')
GROUP BY subject.id, 2, run.iree, result.machine
HAVING count(DISTINCT state::TEXT || coalesce(stage, '') || coalesce(kind, '')
                      || coalesce(fault.name, '')) > 1
    OR bool_or(verdict = 'flaky')
ORDER BY max(run.position) DESC, subject.id
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
            {"id": case, "page": model_page(model), "release": release, "runs": runs, "results": results}
            for case, model, _, release, runs, results in rows[:LISTED]
        ],
        more=max(0, len(rows) - LISTED),
    )
