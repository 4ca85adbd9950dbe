"""What a test that fails shows of its browser: of every open page a picture, its text, and what went wrong in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser.viewing import Viewer, viewers

# Maximum characters of the text of a page, and maximum complaints, in the output.
_TEXT, _COMPLAINTS = 2000, 20
# Milliseconds for a picture of a page that may hang: the test has failed whatever comes.
_PICTURE = 10_000
# Also what is in shadow roots, as all of a dashboard is.
_VISIBLE = """body => {
  const texts = its => {
    if (its.nodeType === Node.TEXT_NODE) return its.data.trim() || []
    if (its.nodeType !== Node.ELEMENT_NODE) return []
    const { display, visibility } = getComputedStyle(its)
    if (display === 'none' || visibility === 'hidden') return []
    return [...(its.shadowRoot?.childNodes ?? []), ...its.childNodes].flatMap(texts)
  }
  return texts(body).join(' | ')
}"""

# Paths of the run in a picture stand for those of a user.
_AT_HOME = r"""() => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  for (let text; (text = texts.nextNode()); ) {
    if (text.data.includes('/')) {
      text.data = text.data
        .replace(/\/\S*?\/\.venv\//g, '/home/user/.venv/')
        .replace(/\/\S*?\/jupyter_data_dir/g, '/home/user/.local/share/jupyter')
        .replace(/\/\S*?\/lab\d+\/(?:root)\b/g, '/home/user/flights')
    }
  }
}"""


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the pages that are open to the report of a failure."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed:
        report.sections += list(pages(item.name))


def pages(name: str) -> Iterator[tuple[str, str]]:
    """Yield title and description of every page that is open."""
    for number, viewer in enumerate(viewer for viewer in viewers if not viewer.page.is_closed()):
        yield f"page {viewer.page.url.partition('?')[0]}", "\n".join(_described(viewer, f"{name}-{number}"))


def _described(viewer: Viewer, name: str) -> Iterator[str]:
    from playwright.sync_api import Error

    picture = folder() / re.sub(r"[^\w.-]+", "-", f"failed-{name}.png")
    try:
        viewer.page.screenshot(path=picture, timeout=_PICTURE)
        yield f"screenshot: {picture}"
        for frame in viewer.page.frames:
            text = frame.locator("body").evaluate(_VISIBLE, timeout=_PICTURE)
            yield f"visible text: {text[:_TEXT]}{'...' if len(text) > _TEXT else ''}"
    except Error as error:
        yield f"the page does not answer: {error}"
    yield from (f"console: {complaint}" for complaint in viewer.complaints[-_COMPLAINTS:])


def keep(page: Any, name: str, **how: Any) -> None:
    """Store a picture of a page if WORKBENCH_SHOTS is set."""
    if "WORKBENCH_SHOTS" in os.environ:
        page.evaluate(_AT_HOME)
        page.screenshot(path=folder() / f"{name}.png", **how)


def folder() -> Path:
    """Return the folder of pictures: that of WORKBENCH_SHOTS, or that of the run."""
    made = Path(os.environ.get("WORKBENCH_SHOTS") or Path(os.environ["JUPYTER_DATA_DIR"]).with_name("screenshots"))
    made.mkdir(parents=True, exist_ok=True)
    return made
