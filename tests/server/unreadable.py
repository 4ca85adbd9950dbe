"""A registry that cannot be read for a while, as when its file server fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workbench.config import data_folder


@contextmanager
def unreadable() -> Iterator[None]:
    """Give a context in which the folder of clusters, one of `own_registry`, is none; at no moment is it not there."""
    link = data_folder()
    readable, other = link.readlink(), link.with_name("unreadable")
    (other / "workbench").mkdir(parents=True)
    (other / "workbench" / "clusters").write_text("no folder")
    _lead(link, other)
    try:
        yield
    finally:
        _lead(link, readable)


def _lead(link: Path, folder: Path) -> None:
    new = link.with_name("new")
    new.symlink_to(folder)
    new.replace(link)
