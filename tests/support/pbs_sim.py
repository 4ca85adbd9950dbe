"""A PBS of five nodes that are separate hosts, whose programs really run jobs; no daemon of a real one takes part.

What matters to a world is as it is with OpenPBS: a job and each task that ``pbs_tmrsh`` starts on another node begin in
the home folder with a few variables alone, and the list of nodes is on the first node only.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support import pbs_programs
from support.daemons import DEADLINE, Daemon, Trouble
from support.netns import Network

NAMES = ("n1", "n2", "n3", "n4", "n5")
PROGRAMS = ("qsub", "qstat", "qselect", "qdel", "pbs_tmrsh", "mom")


class Pbs:
    """Its nodes are up when it is made; start and end it in the main thread."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="wbpbs-", dir="/tmp"))
        for name in ("log", "jobs", "moms", "home", "bin"):
            (self.folder / name).mkdir()
        for name in PROGRAMS:
            line = shlex.join([sys.executable, "-IS", pbs_programs.__file__, name, str(self.folder)])
            (self.folder / "bin" / name).write_text(f'#!/bin/sh\nexec {line} "$@"\n')
            (self.folder / "bin" / name).chmod(0o755)
        self._nodes: dict[str, Daemon] = {}
        self.network = Network(self.folder, NAMES, socket.gethostname().partition(".")[0], {})
        try:
            for name in NAMES:
                mom = [str(self.folder / "bin" / "mom"), name]
                self._nodes[name] = self.network.boot(name, mom, self.folder / "log" / name)
            self._wait_up()
        except BaseException:
            self.close()
            raise

    def jobs(self) -> list[str]:
        """Return the numbers of the jobs that have not ended."""
        return [job["id"].partition(".")[0] for job in pbs_programs.all_jobs(self.folder) if job["state"] != "F"]

    def files(self, pattern: str) -> list[str]:
        """Return the files of such a name in the nodes' memory and in their folders for temporary files."""
        found = []
        for name, node in self._nodes.items():
            root = Path(f"/proc/{node.process.children()[0].pid}/root")
            for folder in (root / "dev/shm", root / str(self.folder / "local").lstrip("/")):
                found += [f"{name}:/{path.relative_to(root)}" for path in folder.rglob(pattern)]
        return found

    def _wait_up(self) -> None:
        begin = time.monotonic()
        while len(list((self.folder / "moms").iterdir())) < len(NAMES):
            for node in self._nodes.values():
                node.check()
            if time.monotonic() - begin > DEADLINE:
                raise Trouble(f"waited {DEADLINE} s for the nodes; {self._nodes[NAMES[0]].tail()}")
            time.sleep(0.01)

    @contextmanager
    def in_environment(self) -> Iterator[None]:
        """Let this process, and what it starts, reach it, and no other."""
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith(("SLURM_", "PBS_"))]:
                patch.delenv(name)
            patch.setenv("PATH", os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]]))
            yield

    def close(self) -> None:
        """End jobs and nodes, and leave nothing behind."""
        for node in self._nodes.values():
            node.kill()
        self.network.close()
        shutil.rmtree(self.folder)
