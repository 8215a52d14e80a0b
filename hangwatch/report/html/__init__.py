"""The pages of reports: index.html, one file that loads nothing else."""

from __future__ import annotations

from hangwatch.errors import ReportError
from hangwatch.report.schema import Report
from hangwatch.report.straggler_schema import StragglerReport


def render_page(report: Report) -> str:
    """The page for the content of a report.json.

    Raises ReportError for content that is no report, or if jinja2 is missing.
    """
    try:
        # A job without an incident need not load it.
        from hangwatch.report.html.incident import render  # noqa: PLC0415
    except ImportError as error:
        raise _missing(error) from None
    return render(report)


def render_straggler(report: StragglerReport) -> str:
    """The same for that of a straggler.json."""
    try:
        from hangwatch.report.html.straggler import render  # noqa: PLC0415 (as above)
    except ImportError as error:
        raise _missing(error) from None
    return render(report)


def _missing(error: ImportError) -> ReportError:
    return ReportError(f"no page can be rendered: {error}")
