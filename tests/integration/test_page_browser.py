"""The post-mortem page in a real browser."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

import pytest
from browser import chromium, opened
from harness import PROGRAMS, reaches, watch
from large_incident import large_incident
from slow_evidence import EVIDENCE as SLOW
from waiting import in_time

from hangwatch.report.build import build_report
from hangwatch.report.files import load_incident
from hangwatch.report.html import render_page, render_straggler
from hangwatch.report.schema import SCHEMA
from hangwatch.report.straggler import build_straggler_report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    Keep = Callable[[Any], Path]

Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, Scheme] = ("light", "dark")
pytestmark = pytest.mark.quiet
ZOO = PROGRAMS.parents[1] / "zoo/programs"
OPENS_S = 3.0
"""How long the page of 10,240 ranks may take to open."""
MOST_BYTES = 3_000_000
CONTRAST = 4.5
"""Least contrast of text (WCAG 2.2, 1.4.3)."""


# Of every text the contrast with what is behind it, the text itself, worst first.
CONTRASTS = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map(
    (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  ).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || ["SCRIPT", "TITLE", "title"].includes(element.tagName))
      continue;
    const style = getComputedStyle(element);
    const svg = element.namespaceURI.endsWith("svg");
    const box = element.closest(".node, .lane");
    const rect = box && box.querySelector("rect");
    const back = svg && rect ? parse(getComputedStyle(rect).fill) : behind(element);
    const [a, b] = [light(parse(svg ? style.fill : style.color)), light(back)];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found.push([Math.round(contrast * 100) / 100, walk.currentNode.data.slice(0, 40)]);
  }
  return found.sort((x, y) => x[0] - y[0]);
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a real incident: the data worker of rank 2 is stuck.

    A hook copies them, for the run's own directory does not outlive the run.
    """
    copies = tmp_path_factory.mktemp("copies")
    page = copies / "incident-001/index.html"

    def copied(reports: Sequence[Mapping[str, Any]]) -> bool:
        if not reaches("hang")(reports) or not page.exists():
            return False
        text = page.read_text()
        return "<strong>HANG</strong>" in text and text.endswith("</html>")

    watch(
        ZOO / "ddp_data_worker_stuck.py",
        "--suspect-after",
        "3",
        "--hang-after",
        "4",
        "--hook",
        f"cp -r -t {copies}",
        until=copied,
        env={"OMP_NUM_THREADS": "1"},
        forked=True,
    )
    return page.parent


@pytest.fixture(scope="module")
def incident(kept: Path) -> Any:
    """What was reported of it."""
    return load_incident(kept)[1]


@pytest.fixture
def keep(tmp_path: Path) -> Keep:
    """Renders a report to a file."""

    def render(report: Any) -> Path:
        path = tmp_path / "index.html"
        path.write_text(render_page(report), "utf-8")
        return path

    return render


def overflow(page: Page) -> int:
    """By how many pixels the page is wider than its window."""
    wider: int = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return wider


def test_the_watchdog_leaves_the_page_beside_the_report(kept: Path, incident: Any) -> None:
    assert (kept / "index.html").read_text() == render_page(incident)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_real_incident_is_shown_without_errors_or_requests(
    browser: Browser, incident: Any, keep: Keep, scheme: Scheme
) -> None:
    with opened(browser, keep(incident), scheme=scheme) as found:
        page = found.page
        assert incident["verdict"]["headline"] in page.locator("h1").inner_text()
        assert "fcntl.flock" in page.locator(".code.culprit .line.here").inner_text()
        culprit = page.locator("#waits .node.culprit .who")
        assert culprit.text_content() == "rank 2"
        assert page.locator("#waits .node.victim .who").text_content() == "ranks 0, 1, 3"
        lane = page.locator("#calls .lane.culprit")
        assert lane.locator(".hole").count() == 1
        assert page.locator("#calls .lane:not(.culprit) .wait").count() == 3
        assert page.locator("#progress tr.culprit .l1").count() == 1
        assert page.locator("#stacks .tree .branch.bad .chip").text_content() == "rank 2"
        assert "Images.__getitem__" in page.locator("#stacks").inner_text()
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, back[4:-1].split(","))) > 384) == (scheme == "light")
        assert found.troubles == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_text_can_be_read_in_both_themes(
    browser: Browser, incident: Any, keep: Keep, scheme: Scheme
) -> None:
    with opened(browser, keep(incident), scheme=scheme) as found:
        low = [item for item in found.page.evaluate(CONTRASTS) if item[0] < CONTRAST]
        assert low == []


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_is_wider_than_the_window(
    browser: Browser, incident: Any, keep: Keep, width: int
) -> None:
    with opened(browser, keep(incident), width=width) as found:
        found.page.locator("#unfold").click()
        assert overflow(found.page) == 0


def test_the_theme_can_be_chosen_and_stays(browser: Browser, incident: Any, keep: Keep) -> None:
    with opened(browser, keep(incident), scheme="light") as found:
        page = found.page
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.get_by_role("button", name="Dark").click()
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert dark != light
        page.reload()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
        page.get_by_role("button", name="Light").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == light


def test_without_storage_it_works_as_well(browser: Browser, incident: Any, keep: Keep) -> None:
    refuse = "Object.defineProperty(window, 'localStorage', {get() { throw new Error('no'); }})"
    with opened(browser, keep(incident), script=refuse) as found:
        found.page.get_by_role("button", name="Dark").click()
        assert found.page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert found.troubles == []


def test_stacks_fold_and_unfold(browser: Browser, incident: Any, keep: Keep) -> None:
    with opened(browser, keep(incident)) as found:
        page = found.page
        library = page.locator("#stacks .tree details.library").first
        assert not library.locator("ol").is_visible()
        library.locator("summary").click()
        assert library.locator("ol").is_visible()
        page.get_by_role("button", name="Unfold all").click()
        assert page.locator("#stacks details:not([open])").count() == 0
        page.get_by_role("button", name="Fold all").click()
        assert page.locator("#stacks details[open]").count() == 0


def test_a_rank_is_found_wherever_it_is(browser: Browser, incident: Any, keep: Keep) -> None:
    with opened(browser, keep(incident)) as found:
        page = found.page
        box = page.get_by_label("Find rank")
        box.fill("3")
        hits = page.locator("#waits .node.hit .who").all_text_contents()
        assert hits == ["ranks 0, 1, 3"]
        assert page.locator("#progress tr.hit th").all_text_contents() == ["rank 3"]
        assert page.locator("#found").text_content() == f"in {page.locator('.hit').count()} places"
        box.fill("4711")
        assert page.locator("#found").text_content() == "not shown"
        box.press("Escape")
        assert page.locator(".hit").count() == 0
        assert not page.evaluate("document.body.classList.contains('finding')")


def test_the_evidence_is_copied(browser: Browser, incident: Any, keep: Keep) -> None:
    takes = (
        "Object.defineProperty(navigator, 'clipboard', {value: "
        "{writeText: async (text) => { window.taken = text; }}})"
    )
    with opened(browser, keep(incident), script=takes) as found:
        page = found.page
        page.get_by_role("button", name="Copy").click()
        page.wait_for_function("document.getElementById('copied').textContent === 'Copied.'")
        taken = page.evaluate("window.taken")
        assert taken == page.locator("#text").text_content()
        assert "ranks 0, 1, 3 in all_reduce" in taken
        assert "versions: hangwatch" in taken


def test_where_the_clipboard_is_refused_it_is_selected(
    browser: Browser, incident: Any, keep: Keep
) -> None:
    refuses = (
        "Object.defineProperty(navigator, 'clipboard', {value: "
        "{writeText: async () => { throw new Error('no'); }}})"
    )
    with opened(browser, keep(incident), script=refuses) as found:
        page = found.page
        page.get_by_role("button", name="Copy").click()
        page.wait_for_function("document.getElementById('copied').textContent.includes('Ctrl+C')")
        assert page.evaluate("getSelection().toString()").startswith("hangwatch: HANG")
        assert found.troubles == []


def test_it_is_used_by_keyboard_alone(browser: Browser, incident: Any, keep: Keep) -> None:
    with opened(browser, keep(incident)) as found:
        page = found.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the incident"
        assert page.locator(".skip").bounding_box()["x"] >= 0  # type: ignore[index]
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        page.reload()
        reached = []
        for _ in range(200):
            page.keyboard.press("Tab")
            here = page.evaluate(
                "(() => { const e = document.activeElement, s = getComputedStyle(e);"
                " return [e.id || e.getAttribute('aria-label') || e.textContent.trim(),"
                " e === document.body, s.outlineStyle !== 'none']; })()"
            )
            if here[1]:
                break
            reached.append(here[0])
            assert here[2], f"{here[0]} has the focus and does not show it"
        assert {"find", "theme", "unfold", "copy", "text"} <= set(reached)
        order = [reached.index(name) for name in ("find", "theme", "unfold", "copy", "text")]
        assert order == sorted(order)
        summary = page.locator("#stacks .tree details.library summary").first
        summary.focus()
        page.keyboard.press("Enter")
        assert page.locator("#stacks .tree details.library").first.get_attribute("open") is not None


def test_pictures_are_told_in_words_too(browser: Browser, incident: Any, keep: Keep) -> None:
    with opened(browser, keep(incident)) as found:
        page = found.page
        assert page.get_by_role("img", name="Who waits for whom").count() == 1
        calls = page.get_by_role("img", name="Last calls of default_pg")
        assert "rank 2 no all_reduce #12" in (calls.get_attribute("aria-label") or "")
        assert "waits for rank 2" in (page.locator("#waits-words").text_content() or "")


HOSTILE = (
    "</script><img src=x onerror=alert(1)>{{7*7}}{% raw %}\"'><svg/onload=alert(2)>"
    "\u202egnp.exe\u2066 \x00\x1b[31m\x07\udce9 " + "W" * 10_000
)
KEPT = {"state", "kind", "reason", "certainty", "schema", "group_id", "op", "at", "detected_at"}
"""What is judged rather than shown, or shown and tried besides."""


def poisoned(value: Any, name: str = "") -> Any:
    """The same report with every text that may come from outside replaced."""
    if isinstance(value, str) and name not in KEPT:
        return HOSTILE
    if isinstance(value, list):
        return [poisoned(item, name) for item in value]
    if isinstance(value, dict):
        stacks = name in {"stacks", "stack"}
        return {
            key: item if key == "stack" else poisoned(item, key if not stacks else "frames")
            for key, item in value.items()
        }
    return value


def test_hostile_text_stays_text(browser: Browser, incident: Any, keep: Keep) -> None:
    report = poisoned(incident)
    for rank in report["ranks"]:
        rank["exception"] = {"type": HOSTILE, "message": HOSTILE, "site": None}
    for place in (*report["places"], *(call for r in report["ranks"] for call in r["calls"])):
        place["op"] = HOSTILE
    report["run"]["versions"] = {HOSTILE: HOSTILE}
    report["unseen"] = [HOSTILE]
    report["verdict"]["advice"] = [HOSTILE]
    assert report["schema"] == SCHEMA
    file = keep(report)
    with opened(browser, file) as found:
        page = found.page
        assert found.troubles == []
        assert page.locator("img, iframe, object, embed, [onload], [onerror]").count() == 0
        assert page.locator("script").count() == 1
        text = page.evaluate("document.documentElement.textContent")
        assert "This page lacks" not in text
        assert "</script><img src=x onerror=alert(1)>{{7*7}}{% raw %}" in page.inner_text("h1")
        assert not {c for c in text if not c.isprintable()} - {"\n"}
        assert r"\u202egnp.exe" in text
        assert overflow(page) == 0
        assert file.stat().st_size < MOST_BYTES
    with opened(browser, file, width=400) as found:
        assert overflow(found.page) == 0


def test_ten_thousand_ranks_open_at_once(browser: Browser, keep: Keep) -> None:
    begin = time.perf_counter()
    report = build_report(large_incident())
    built = time.perf_counter()
    file = keep(report)
    rendered = time.perf_counter()
    with opened(browser, file) as found:
        page = found.page
        seconds = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd / 1e3")
        size = file.stat().st_size
        print(  # noqa: T201 (a figure of the docs)
            f"10,240 ranks: report {built - begin:.2f} s with its making, page "
            f"{rendered - built:.2f} s, {size / 1e6:.3f} MB, opens in {seconds:.2f} s"
        )
        in_time(time.monotonic() - seconds, OPENS_S)
        assert size < MOST_BYTES
        assert page.locator("#waits .node").count() <= 16
        assert page.locator("#waits .node.culprit .who").text_content() == "rank 5179"
        assert page.locator("#calls .hole").count() >= 1
        assert page.locator("table tr").count() < 100
        box = page.get_by_label("Find rank")
        box.fill("4711")
        assert page.locator("#progress tr.hit").count() == 1
        assert overflow(page) == 0
        assert found.troubles == []


def test_on_paper_everything_is_unfolded_and_fits(
    browser: Browser, incident: Any, keep: Keep
) -> None:
    sees = (
        "addEventListener('afterprint', () => {"
        " window.folded = document.querySelectorAll('details:not([open])').length; })"
    )
    file = keep(incident)
    with opened(browser, file, scheme="dark", script=sees) as found:
        page = found.page
        before = page.locator("details:not([open])").count()
        pdf = page.pdf(format="A4")
        assert pdf.startswith(b"%PDF")
        assert pdf.count(b"/Type /Page\n") >= 2
        assert page.evaluate("window.folded") == 0
        assert page.locator("details:not([open])").count() == before > 0
    with opened(browser, file, width=700, scheme="dark") as found:  # A4 less its margins
        page = found.page
        page.emulate_media(media="print", color_scheme="dark")
        assert overflow(page) == 0
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(255, 255, 255)"
        )
        assert not page.locator("button").first.is_visible()
        wide = page.evaluate(
            "[...document.querySelectorAll('svg, pre, table')]"
            ".filter((e) => e.getBoundingClientRect().right > innerWidth).length"
        )
        assert wide == 0


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_of_a_straggler(
    browser: Browser, tmp_path: Path, scheme: Scheme, width: int
) -> None:
    file = tmp_path / "index.html"
    file.write_text(render_straggler(build_straggler_report(SLOW)), "utf-8")
    with opened(browser, file, scheme=scheme, width=width) as found:
        page = found.page
        assert "wait for rank 2 again and again" in page.locator("h1").inner_text()
        assert "read(batch)" in page.locator(".code.culprit .line.here").inner_text()
        assert page.locator("#waits .lane.culprit .who").text_content() == "rank 2"
        assert page.locator("#waits .lane").count() == 4
        assert page.locator("#lines tbody tr").count() == 3
        page.get_by_label("Find rank").fill("3")
        assert page.locator("#waits .lane.hit .who").all_text_contents() == ["rank 3"]
        assert [item for item in page.evaluate(CONTRASTS) if item[0] < CONTRAST] == []
        assert overflow(page) == 0
        assert found.troubles == []
