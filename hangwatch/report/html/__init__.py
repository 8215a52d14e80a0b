"""The post-mortem page: index.html, one file that loads nothing else."""

from __future__ import annotations

from hangwatch.errors import ReportError
from hangwatch.report.schema import Report


def render_page(report: Report) -> str:
    """The page for the content of a report.json.

    Raises ReportError for content that is no report, or if jinja2 is missing.
    """
    try:
        # A job without an incident need not load it.
        from hangwatch.report.html.content import render  # noqa: PLC0415
    except ImportError as error:
        raise ReportError(f"no page can be rendered: {error}") from None
    return render(report)
