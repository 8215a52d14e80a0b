"""A real browser, headless, that has no network."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page, Route

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDE, HIGH = 1280, 900


@dataclass(slots=True)
class Opened:
    """A page, and all that went wrong on it or was asked of a network."""

    page: Page
    troubles: list[str] = field(default_factory=list)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(  # noqa: PLR0913 (all but two by keyword)
    browser: Browser,
    file: Path,
    *,
    width: int = WIDE,
    scheme: Literal["light", "dark"] = "light",
    script: str = "",
    site: bool = False,
) -> Iterator[Opened]:
    """Open a file as a person does.

    script: what runs in it before its own. site: it may load what lies beside it and below.
    """
    context = browser.new_context(viewport={"width": width, "height": HIGH}, color_scheme=scheme)
    found = Opened(context.new_page())

    def refuse(route: Route) -> None:
        url = route.request.url.partition("#")[0]
        if url == file.as_uri() or (site and url.startswith(f"{file.parent.as_uri()}/")):
            route.continue_()
        else:
            found.troubles.append(f"asked for {route.request.url}")
            route.abort()

    try:
        context.route("**/*", refuse)
        found.page.on("console", lambda message: found.troubles.append(message.text))
        found.page.on("pageerror", lambda error: found.troubles.append(str(error)))
        found.page.on("dialog", lambda dialog: found.troubles.append(dialog.message))
        if script:
            found.page.add_init_script(script)
        found.page.goto(file.as_uri())
        yield found
    finally:
        context.close()
