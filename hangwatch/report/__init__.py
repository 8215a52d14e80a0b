"""Reports: the content of report.json, and the text and the page made from it.

``build_report`` turns an Evidence into report.json's content, ``write_incident`` stores it
with the raw evidence, ``format_verdict`` (terminal.py) prints it, ``render_page`` (html/)
draws it. The live output and that of ``hangwatch report`` come from the same content.
"""

from hangwatch.report.build import build_report
from hangwatch.report.files import load, open_run, write_incident, write_run
from hangwatch.report.html import render_page
from hangwatch.report.schema import SCHEMA
from hangwatch.report.terminal import format_verdict

__all__ = [
    "SCHEMA",
    "build_report",
    "format_verdict",
    "load",
    "open_run",
    "render_page",
    "write_incident",
    "write_run",
]
