"""The post-mortem page: index.html, one file that loads nothing else.

content.py makes all that is shown, page.html.j2 lays it out. Style and script are in
the page, and its policy allows these two alone, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hangwatch.errors import ReportError

if TYPE_CHECKING:
    import jinja2

    from hangwatch.report.schema import Report

_HERE = Path(__file__).parent


def render_page(report: Report) -> str:
    """The page for the content of a report.json.

    Raises ReportError for content that is no report, or if jinja2 is missing.
    """
    try:
        # A job without an incident need not pay for any of it.
        import jinja2  # noqa: PLC0415
        from markupsafe import Markup  # noqa: PLC0415

        from hangwatch.report.html.content import DAMAGED, page_of  # noqa: PLC0415
    except ImportError as error:
        raise ReportError(f"no page can be rendered: {error}") from None
    style, script = ((_HERE / name).read_text("utf-8") for name in ("page.css", "page.js"))
    try:
        return _template().render(
            page=page_of(report),
            style=Markup(style),  # noqa: S704 (a file of ours)
            script=Markup(script),  # noqa: S704 (a file of ours)
            style_hash=_hash(style),
            script_hash=_hash(script),
        )
    except (jinja2.TemplateError, *DAMAGED) as error:
        raise ReportError(f"the page cannot be rendered: {type(error).__name__}: {error}") from None


@cache
def _template() -> jinja2.Template:
    """The template, compiled once: that takes longer than drawing a page."""
    import jinja2  # noqa: PLC0415

    from hangwatch.report.html.content import FILTERS  # noqa: PLC0415

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        finalize=_harmless,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS
    return environment.get_template("page.html.j2")


def _hash(text: str) -> str:
    """A source of Content-Security-Policy: the hash of an inline element."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _harmless(value: Any) -> Any:
    """A value with its control characters spelt out: HTML does not escape them.

    So are marks that turn the direction of writing, which make code read otherwise than it
    runs (CVE-2021-42574).
    """
    if type(value) is not str or value.isprintable():
        return value
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in value
    )
