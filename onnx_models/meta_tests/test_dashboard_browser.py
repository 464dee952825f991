"""The site in a real browser: Debian's Chromium, from a file and from a server, with and without scripts.

CHROMIUM names the browser; SCREENSHOTS a folder that keeps a picture of each page.
"""

from __future__ import annotations

import functools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from onnx_models.dashboard.build import build
from onnx_models.history import History
from onnx_models.meta_tests.histories import case, device, run, save

PAGES = (
    "index.html",
    "matrix.html",
    "failures.html",
    "operators.html",
    "compare.html",
    "performance.html",
    "flakes.html",
    "about.html",
    "models/wheels/b.html",
)

MARKUP = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"

HOSTILE = f"wheels/{MARKUP}"

TEXTS = ("signature", "title", "excerpt", "message")


def runs_of_four_releases() -> list[Any]:
    found = []
    for number, release in enumerate(("3.0.0", "3.5.0", "3.9.0", "3.13.0")):
        cases = []
        for on, last in (("cpu", "compare"), ("vulkan", "compare"), ("cuda", "compile")):
            for k, name in enumerate("abcdefgh"):
                ops = {"Conv": 2, "Relu": 1} if k % 2 else {"Gemm": 1, "If": 1}
                more: dict[str, Any] = {
                    "operators": ops,
                    "tags": ["trained"],
                    "outputs": [{"name": "y", "ratio": 1.5}],
                }
                if (k + number) % 3 == 0:
                    fault = {
                        "signature": f"illegal-op:onnx.{name.upper()}",
                        "title": f"{name} is not converted",
                    }
                    excerpt = f"error: {name}\n" * 30
                    cases.append(
                        case(
                            f"wheels/{name}",
                            on,
                            stage="compile",
                            kind="error",
                            excerpt=excerpt,
                            **fault,
                            **more,
                        )
                    )
                else:
                    cases.append(case(f"wheels/{name}", on, stage=last, **more))
            cases.append(
                case(
                    HOSTILE, on, stage="compile", kind="error", signature=MARKUP, title=MARKUP, excerpt=MARKUP
                )
            )
        cases.append(case("skeletons/long" + "-name" * 40, "cpu", vacuous="every output is one number"))
        devices = {"cpu": device("cpu"), "vulkan": device("vulkan"), "cuda": device("cuda", "compile")}
        found.append(run(cases, number=number, release=release, devices=devices))
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    save(folder / "runs", *runs_of_four_releases())
    build(folder / "runs", folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    assert found, "these tests need a browser: apt-get install chromium, or name one in CHROMIUM"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


Opened = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser, site: Path) -> Iterator[Opened]:
    """Opens a page; at the end nothing may have been said on the console or asked of another host."""
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def visit(page: str, *, base: str = "", width: int = 1280, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        tab = context.new_page()
        home = base or f"file://{site}/"
        tab.on("console", lambda told: faults.append(f"{page}: {told.type}: {told.text}"))
        tab.on("pageerror", lambda error: faults.append(f"{page}: {error}"))
        tab.on("requestfailed", lambda request: faults.append(f"{page}: {request.url} failed"))
        tab.on("request", lambda asked: faults.extend(strange(asked.url, home)))
        tab.goto(home + page)
        return tab

    yield visit
    for context in contexts:
        context.close()
    assert faults == []


def strange(url: str, home: str) -> list[str]:
    """A fault for each request that leaves the site."""
    return [] if url.startswith(home) else [f"asked {url}"]


def shown(tab: Page, table: str = "matrix") -> list[str]:
    """The first cells of the rows that can be seen."""
    rows = tab.locator(f"#{table} tbody tr:not([hidden]) th a")
    return rows.all_text_contents()


@pytest.mark.parametrize("page", PAGES)
def test_every_page_opens_from_a_file_and_from_a_server(opened: Opened, served: str, page: str) -> None:
    for base in ("", served):
        tab = opened(page, base=base)
        assert tab.title().endswith("ONNX models on IREE")
        assert tab.locator("h1").count() == 1
        assert tab.locator('nav a[aria-current="page"]').count() == (0 if "/" in page else 1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_nothing_keeps_anybody_out(opened: Opened, served: str, page: str, scheme: str) -> None:
    # axe is itself a script put into the page, and it fetches the style sheet.
    tab = opened(page, base=served, color_scheme=scheme, bypass_csp=True)
    found = [
        (each["id"], each["impact"], each["nodes"][0]["html"][:200])
        for each in Axe().run(tab).response["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert found == []


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("page", PAGES)
def test_no_page_is_wider_than_the_window(opened: Opened, page: str, width: int) -> None:
    tab = opened(page, width=width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_whole_without_scripts(opened: Opened, page: str) -> None:
    tab = opened(page, java_script_enabled=False)
    assert not tab.locator("form.filters").first.is_visible() if tab.locator("form.filters").count() else True
    assert len(tab.locator("main").inner_text()) > 100


def test_the_picture_of_each_page_is_kept(opened: Opened, tmp_path: Path) -> None:
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    for scheme in ("light", "dark"):
        for page in PAGES:
            file = folder / scheme / f"{page.removesuffix('.html').replace('/', '-')}.png"
            opened(page, color_scheme=scheme).screenshot(path=file, full_page=True)
            assert file.stat().st_size > 5000


def test_markup_in_data_is_text(opened: Opened) -> None:
    for page in ("index.html", "matrix.html", "failures.html", "compare.html"):
        tab = opened(page)
        assert tab.title() != "owned"
        assert tab.locator("main script, main img").count() == 0
    tab = opened("matrix.html")
    tab.get_by_role("link", name=MARKUP).click()
    assert tab.locator("h1").inner_text() == HOSTILE
    assert MARKUP in tab.locator("pre").first.inner_text()
    assert tab.title().startswith(HOSTILE)


def answer(site: Path, query: str) -> list[str]:
    history = History(site.parent / "runs")
    try:
        return [str(model) for (model,) in history.rows(query)]
    finally:
        history.close()


NOW = """SELECT DISTINCT subject.model FROM result JOIN subject ON subject.key = result.subject
         JOIN run ON run.key = result.run LEFT JOIN fault ON fault.key = result.fault
         WHERE run.release = '3.13.0' AND {} ORDER BY 1"""

FILTERS: dict[str, tuple[dict[str, str], str]] = {
    "text": ({"text": "LONG"}, "subject.model LIKE '%long%'"),
    "collection": ({"collection": "skeletons"}, "subject.collection = 'skeletons'"),
    "operator": ({"operator": "If"}, "subject.model IN ('a', 'c', 'e', 'g')"),
    "state": ({"state": "failed"}, "state = 'failed'"),
    "vacuous": ({"state": "vacuous"}, "state = 'vacuous'"),
    "device": ({"device": "vulkan"}, "device = 'vulkan'"),
    "both": ({"device": "cuda", "state": "passed"}, "device = 'cuda' AND state = 'passed'"),
    "fault": ({"fault": "illegal-op:onnx.D"}, "fault.name = 'illegal-op:onnx.D'"),
    "none": ({"text": "no such model"}, "false"),
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_shows_what_a_query_finds(opened: Opened, site: Path, name: str) -> None:
    filters, where = FILTERS[name]
    tab = opened("matrix.html")
    for key, value in filters.items():
        control = tab.locator(f'form [name="{key}"]')
        if key == "text":
            control.fill(value)
        else:
            control.select_option(label=value)
    expected = answer(site, NOW.format(where))
    assert sorted(shown(tab)) == sorted(expected)
    said = tab.locator("form output").inner_text()
    assert said.startswith("No row fits" if not expected else f"{len(expected)} of ")
    again = opened(f"matrix.html#{tab.url.partition('#')[2]}")
    assert shown(again) == shown(tab), "the address restores what was chosen"
    tab.get_by_role("button", name="Clear").click()
    expect(tab.locator("form output")).to_have_text("10 rows")
    assert len(shown(tab)) == 10


@pytest.mark.parametrize("width", [360, 1280])
def test_the_matrix_is_a_table_though_its_rows_are_grids(opened: Opened, width: int) -> None:
    """Rows that are laid out only in sight must line up with the head, and be rows for a screen reader."""
    tab = opened("matrix.html", width=width)
    table = tab.locator("#matrix")
    edges = """row => [...row.cells].map(cell => {
        const box = cell.getBoundingClientRect();
        return [box.left, box.right];
    })"""
    head = table.locator("thead tr").evaluate(edges)
    for row in table.locator("tbody tr").all():
        row.scroll_into_view_if_needed()
        assert row.evaluate(edges) == head
    outline = table.aria_snapshot()
    assert outline.count("- columnheader ") == len(head)
    assert outline.count("- rowheader ") == len(shown(tab))
    assert outline.count("- cell") == len(shown(tab)) * (len(head) - 1)


def test_sorting_by_name_and_by_number(opened: Opened) -> None:
    tab = opened("matrix.html")
    tab.get_by_role("button", name="Model").click()
    first = shown(tab)
    assert first == sorted(first, key=lambda name: f"{name.lower()} ")
    tab.get_by_role("button", name="Model").click()
    assert shown(tab) == first[::-1]
    assert "sort=-0" in tab.url
    assert shown(opened(f"matrix.html#{tab.url.partition('#')[2]}")) == first[::-1]
    faults = opened("failures.html")
    faults.get_by_role("button", name="Cases").click()
    cells = faults.eval_on_selector_all(
        "#faults tbody tr td:nth-child(4)", "all => all.map(e => +e.textContent)"
    )
    assert cells == sorted(cells, reverse=True)


def test_everything_is_reached_by_keyboard(opened: Opened) -> None:
    tab = opened("matrix.html")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    tab.keyboard.press("Enter")
    assert tab.url.endswith("#content")
    tab.locator('form [name="text"]').focus()
    tab.keyboard.type("long")
    assert len(shown(tab)) == 1


def test_a_link_to_a_filter_from_another_page(opened: Opened) -> None:
    tab = opened("operators.html")
    tab.get_by_role("link", name="If", exact=True).click()
    assert sorted(shown(tab)) == ["a", "c", "e", "g"]
    tab.go_back()
    assert tab.url.endswith("operators.html")
    tab = opened("index.html")
    tab.locator("table a", has_text="vulkan").first.click()
    assert tab.locator('[name="device"]').input_value() == "vulkan"


def test_any_two_runs_and_devices_are_compared(opened: Opened, site: Path) -> None:
    tab = opened("compare.html")
    expect(tab.locator("#compare output")).not_to_be_empty()
    options = tab.locator('[name="base"] option').all_inner_texts()
    assert [words.split(" ")[0] for words in options] == ["3.13.0", "3.9.0", "3.5.0", "3.0.0"]
    tab.locator('[name="base"]').select_option(index=2)
    tab.locator('[name="head"]').select_option(index=0)
    for side in ("base", "head"):
        tab.locator(f'[name="{side}-device"]').select_option("vulkan")
    expect(tab.locator("#compared thead")).to_contain_text("3.5.0, vulkan")
    query = """WITH r AS (SELECT subject.model, run.release, state::TEXT || coalesce(fault.name, '') AS what
                  FROM result JOIN subject ON subject.key = result.subject JOIN run ON run.key = result.run
                  LEFT JOIN fault ON fault.key = result.fault WHERE device = 'vulkan')
               SELECT a.model FROM r a JOIN r b ON a.model = b.model AND a.release = '3.5.0'
                  AND b.release = '3.13.0' AND a.what <> b.what ORDER BY 1"""
    rows = tab.eval_on_selector_all("#compared tbody th", "all => all.map(e => e.textContent)")
    assert sorted(rows) == [f"wheels/{name}" for name in answer(site, query)]
    again = opened(f"compare.html#{tab.url.partition('#')[2]}")
    expect(again.locator("#compared thead")).to_contain_text("3.5.0, vulkan")


def test_a_page_prints_without_what_only_a_screen_can_use(opened: Opened, tmp_path: Path) -> None:
    tab = opened("matrix.html")
    tab.emulate_media(media="print")
    assert not tab.locator("nav").is_visible()
    assert not tab.locator("form.filters").is_visible()
    tab.pdf(path=tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_an_empty_history_says_so(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    build(tmp_path / "runs", tmp_path / "site")
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(f"file://{tmp_path}/site/index.html")
    assert "No run is in the history yet" in tab.locator("main").inner_text()
    context.close()
