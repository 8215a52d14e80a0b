"""Lines of code, groups, ranks and certainties, as reports name them."""

from __future__ import annotations

from collections.abc import Mapping

from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.frames import line_of
from hangwatch.report import schema
from hangwatch.text import fold_ranks

CONTEXT_LINES = 2
"""Lines of source shown on either side of the culprit's."""


def site_content(
    site: Site | None, sources: Mapping[str, str], *, context: bool = True
) -> schema.Site | None:
    """A site with its line, and the lines around it where its file is at hand."""
    return None if site is None else known_site_content(site, sources, context=context)


def known_site_content(
    site: Site, sources: Mapping[str, str], *, context: bool = True
) -> schema.Site:
    """The same of a site that is known.

    ``call`` is there where the line has called something of an installed package.
    """
    content: schema.Site = {
        "file": site.file,
        "line": site.line,
        "function": site.function,
        "source": site.source or line_of(sources, site.file, site.line),
    }
    if site.call is not None:
        content["call"] = {
            "package": site.call.package,
            "function": site.call.function,
            "inner": site.call.inner or None,
        }
    if context:
        content["context"] = _context(sources, site.file, site.line)
    return content


def call_text(site: schema.Site) -> str:
    """What a stored site has called, as people read it; empty for nothing of a package."""
    call = site.get("call")
    return f"{call['function']} of {call['package']}" if call else ""


def _context(sources: Mapping[str, str], file: str, line: int) -> schema.Context | None:
    """The lines around a site: ``first`` is the number of the first of them."""
    lines = sources.get(file, "").splitlines()
    if not 0 < line <= len(lines):
        return None
    first = max(1, line - CONTEXT_LINES)
    return {"first": first, "lines": lines[first - 1 : line + CONTEXT_LINES]}


def group_label(key: GroupKey | None) -> str | None:
    """What a group is called in print; None for none."""
    return None if key is None else known_group_label(key)


def known_group_label(key: GroupKey) -> str:
    """What a group is called in print: its description, else its ranks."""
    if key.desc and key.desc != "undefined":
        return key.desc
    return f"ranks {fold_ranks(key.ranks)}"


def causes_text(verdict: schema.Verdict) -> tuple[list[str], list[str]]:
    """(why, each with how sure it is, best first; what that is taken from).

    Both are empty where the source does not show it.
    """
    cause = verdict.get("cause")  # not in reports of earlier versions
    if cause is None or not cause["evidence"]:
        return [], []
    several = [cause, *cause["others"]]
    whys = [one["why"] for one in several]
    seen = [what for what in cause["evidence"] if what not in whys]
    return [f"({one['certainty']}) {one['why']}" for one in several], seen


def certainty_text(verdict: schema.Verdict) -> str:
    """``likely``, or ``proved, who did it: possible`` where it is surer that the job hangs."""
    sure = verdict["certainty"]
    of = verdict.get("certainty_of")  # not in reports of earlier versions
    hang = of["hang"] if of is not None else sure
    return sure if hang == sure else f"{hang}, who did it: {sure}"
