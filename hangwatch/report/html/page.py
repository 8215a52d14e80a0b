"""The layout that all pages share: page.html.j2, with style and script.

Both are in the page, and its policy allows these two alone, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import jinja2
from markupsafe import Markup

from hangwatch.console import printable
from hangwatch.errors import ReportError
from hangwatch.report import schema
from hangwatch.report.wording import call_text, certainty_text, site_label
from hangwatch.text import shortened, words

LONG = 2_000
"""Characters of a sentence of hangwatch's, which may name things from outside."""

_HERE = Path(__file__).parent
_LINKED = re.compile(r"(.*\S)\s+(https://[\w./%#-]+)", re.DOTALL)
"""Advice that ends in the address of a page."""

DAMAGED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors from a stored report that does not have the shape of one."""
Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do. ``link``: to the documentation, empty where there is none."""

    parts: tuple[str, ...]
    """Text and code in turns."""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """A line of code with those around it."""

    title: str
    site: schema.Site
    lines: tuple[tuple[int, str], ...]
    """Number and text."""


def rendered(name: str, page_of: Callable[[Content], Any], report: Content) -> str:
    """The whole page. name: of its template. page_of: returns what that shows of a report.

    Raises ReportError for content that is no report.
    """
    style, script = ((_HERE / file).read_text("utf-8") for file in ("page.css", "page.js"))
    try:
        template = _templates().get_template(name)
        return template.render(
            page=page_of(report),
            style=Markup(style),  # noqa: S704 (a file of ours)
            script=Markup(script),  # noqa: S704 (a file of ours)
            style_hash=_hash(style),
            script_hash=_hash(script),
        )
    except (jinja2.TemplateError, *DAMAGED) as error:
        raise ReportError(f"the page cannot be rendered: {type(error).__name__}: {error}") from None


@cache
def _templates() -> jinja2.Environment:
    """The templates, compiled once: that takes longer than drawing a page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        finalize=_harmless,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "shortened": shortened,
        "words": words,
        "location": site_label,
        "call": call_text,
        "certainty": certainty_text,
    }
    return environment


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
    return "\n".join(map(printable, value.split("\n")))


def parts_of(text: str) -> tuple[str, ...]:
    """Text and code in turns: code is between backticks."""
    return tuple(shortened(text, LONG).split("`"))


def advice_of(text: str) -> Advice:
    """Advice, which may end in the address of a page."""
    linked = _LINKED.fullmatch(text)
    text, link = linked.groups() if linked else (text, "")
    return Advice(parts_of(text), link)


def moment_text(text: str) -> str:
    """A time of report.json in UTC."""
    at = time_of(text)
    return f"{at:%Y-%m-%d %H:%M:%S} UTC" if at else shortened(text, 40)


def time_of(text: str) -> datetime | None:
    """A time of a report, None for what is none."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def code_of(site: schema.Site, title: str) -> Code:
    """A line with those around it, where they are at hand."""
    context = site.get("context")
    lines = []
    if context:
        for number, text in enumerate(context["lines"], context["first"]):
            lines.append((number, shortened(text.expandtabs(4).rstrip(), 400)))
    elif site["source"]:
        lines.append((site["line"], shortened(site["source"], 400)))
    return Code(title, site, tuple(lines))
