"""Sources of the installed versions of other projects, whose tests are not installed: fetched once, and kept."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from importlib.metadata import metadata, version
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".suites"
# Seconds. Pip makes an environment to read the metadata of a source distribution.
PATIENCE = 1800


def distribution(name: str) -> Path:
    """Return the unpacked source distribution of an installed package."""

    def fetch(folder: Path) -> Path:
        wanted = ["--no-binary", name, "--no-deps", "--dest", str(folder), f"{name}=={version(name)}"]
        subprocess.run([sys.executable, "-m", "pip", "download", *wanted], check=True, timeout=PATIENCE)
        [archive] = folder.glob("*.tar.gz")
        with tarfile.open(archive) as members:
            members.extractall(folder, filter="data")
        return folder / archive.name.removesuffix(".tar.gz")

    return _cached(name, fetch)


def repository(name: str) -> Path:
    """Return a clone of the repository that an installed package names in its metadata, at the tag of its version."""

    def fetch(folder: Path) -> Path:
        urls = dict(entry.split(", ", 1) for entry in metadata(name).get_all("Project-URL", []))
        command = ["git", "clone", "--quiet", "--depth", "1", "--branch", version(name), urls["Source"], "clone"]
        subprocess.run(command, cwd=folder, check=True, timeout=PATIENCE)
        return folder / "clone"

    return _cached(name, fetch)


def _cached(name: str, fetch: Callable[[Path], Path]) -> Path:
    kept = CACHE / f"{name}-{version(name)}"
    if not kept.exists():
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            shutil.move(fetch(Path(folder)), kept)
    return kept
