"""A headless Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def running_chromium() -> Iterator[Any]:
    """Have a headless Chromium; while it runs, this thread has an event loop."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("tests in a browser need playwright: pip install 'mpi-workbench[test]'")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.fail("tests in a browser need Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield browser
        browser.close()
