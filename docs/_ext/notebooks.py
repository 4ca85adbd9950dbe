"""Bring the notebooks to the pages of the tutorials: with outputs where a run of the tests has left them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]


def copy(app: Sphinx) -> None:
    """Copy the notebooks, executed ones where there are any, with links that hold in the new place."""
    target = Path(app.srcdir, "tutorials")
    executed = Path(os.environ.get("WORKBENCH_EXECUTED", ROOT / "build" / "notebooks"))
    for stored in sorted((ROOT / "notebooks").glob("*.ipynb")):
        found = executed / stored.name
        text = (found if found.exists() else stored).read_text(encoding="utf-8").replace("](../docs/", "](../")
        page = target / stored.name
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
    shutil.copyfile(ROOT / "notebooks" / "covariance.c", target / "covariance.c")


def follow(_: Sphinx, page: str, source: list[str]) -> None:
    """Have links from the pages lead to the copies."""
    if "/" not in page:
        source[0] = source[0].replace("](../notebooks/", "](tutorials/")


def setup(app: Sphinx) -> dict[str, bool]:
    """Copy them before the pages are looked for."""
    app.connect("builder-inited", copy, priority=100)
    app.connect("source-read", follow)
    return {"parallel_read_safe": True}
