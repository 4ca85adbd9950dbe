"""A separate Slurm, as real as it gets on one machine: `python -m support.slurm` in tests/ to play with it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from support.daemons import DEADLINE, Daemon, Trouble
from support.netns import Network
from support.slurm_conf import Node, configure, free_ports

NAMES = ("n1", "n2", "n3", "n4")
# What is needed, and the Debian package that brings it.
PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "qsub": "slurm-wlm-torque",
    "ip": "iproute2",
}
# Not everybody has the folders of daemons in it.
_PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
# bash waits for what is left to a node, as the first process of a host does; slurmd would not.
_NODE = """
setpriv --pdeathsig KILL "$@" &
wait $!
"""


def missing() -> list[str]:
    """Return the Debian packages that must be installed first."""
    return [package for program, package in PACKAGES.items() if shutil.which(program, path=_PATH) is None]


class Slurm:
    """Controller and four nodes, up when it is made; start and end it in the main thread.

    Parameters
    ----------
    namespaces
        Nodes are separate hosts, with addresses and names. Otherwise all are this host under four names.
    cpus
        CPUs of each node, whatever this host has.
    patience
        Seconds for which its parts wait for each other: a dead node is noticed after about three times as many.
    kill_wait
        Seconds between the two signals that end a job.
    min_job_age
        Seconds for which the scheduler remembers a job that has ended.
    """

    nodes = NAMES

    def __init__(
        self, *, namespaces: bool = False, cpus: int = 2, patience: int = 5, kill_wait: int = 3, min_job_age: int = 300
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="wbslurm-", dir="/tmp"))
        self.folder.chmod(0o755)
        for name in ("log", "state", "spool", "munge", "tmp", *(f"tmp/{node}" for node in NAMES)):
            (self.folder / name).mkdir()
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        """What a process needs in its environment to reach it."""
        self._surroundings = {**self.environment, "PATH": _PATH}
        self.network: Network | None = None
        self._daemons: dict[str, Daemon] = {}
        self._ports = dict(zip(("slurmctld", *NAMES), free_ports(1 + len(NAMES)), strict=True))
        try:
            self._start_munged()
            if namespaces:
                self.network = Network(self.folder, NAMES, _this_host(), self._surroundings)
            configure(
                self.folder,
                (_this_host(), self.network.gateway if self.network else "127.0.0.1", self._ports["slurmctld"]),
                [self._node(name, cpus) for name in NAMES],
                local=self.network.local if self.network else None,
                patience=patience,
                kill_wait=kill_wait,
                min_job_age=min_job_age,
            )
            self.start_controller()
            for name in NAMES:
                self.start_node(name)
            self.wait_up()
        except BaseException:
            self.close()
            raise

    def run(self, *command: str, within: float = DEADLINE) -> str:
        """Return what a command says that talks to it; it has to succeed."""
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=within, errors="replace"
        )
        if done.returncode:
            raise Trouble(f"{command} has ended with {done.returncode}: {done.stderr or done.stdout}")
        return done.stdout

    def submit(self, text: str, *options: str) -> str:
        """Submit a line of shell and return the id of the job; its output is lost unless an option says otherwise."""
        return self.run("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={text}").strip()

    def state(self, job: str) -> str | None:
        """Return the state of a job in the words of squeue, or None if it is forgotten."""
        lines = self.run("squeue", "--noheader", "--states=all", "--format=%i %T").splitlines()
        return dict(line.split() for line in lines).get(job)

    def jobs(self) -> list[str]:
        """Return the jobs that have not ended: waiting, running or completing."""
        return self.run("squeue", "--noheader", "--format=%i").split()

    def states(self) -> dict[str, str]:
        """Return the state of each node, in the compact words of sinfo."""
        lines = self.run("sinfo", "--noheader", "--Node", "--partition=debug", "--format=%N %t").splitlines()
        return dict(line.split() for line in lines)

    def wait_up(self, *names: str, within: float = DEADLINE) -> None:
        """Wait until nodes, or all, take jobs."""
        begin, last = time.monotonic(), "no answer"
        while time.monotonic() - begin < within:
            for daemon in self._daemons.values():
                daemon.check()
            try:
                states = self.states()
            except Trouble as trouble:
                last = str(trouble)
            else:
                last = str(states)
                if all(states.get(name) in {"idle", "mix", "alloc"} for name in names or NAMES):
                    return
            time.sleep(0.02)
        tails = "\n".join(self._daemons[name].tail() for name in ("slurmctld", *(names or NAMES)))
        raise Trouble(f"waited {within} s for {names or NAMES}, and it says {last}; {tails}")

    def kill_node(self, name: str) -> None:
        """Kill a node with everything that runs there."""
        self._daemons.pop(name).kill()

    def start_node(self, name: str) -> None:
        """Start a node, as after a power failure."""
        command = ["slurmd", "-D", "-N", name, "-f", self.environment["SLURM_CONF"]]
        log = self.folder / "log" / name
        if self.network:
            self._daemons[name] = self.network.boot(name, command, log)
        else:
            self._daemons[name] = Daemon(["bash", "-c", _NODE, "node", *command], log, self._surroundings)

    def drain(self, name: str) -> None:
        """Let a node take no more jobs."""
        self.run("scontrol", "update", f"NodeName={name}", "State=DRAIN", "Reason=test")

    def resume(self, name: str) -> None:
        """Let a drained node take jobs again."""
        self.run("scontrol", "update", f"NodeName={name}", "State=RESUME")
        self.wait_up(name)

    def stop_controller(self) -> None:
        """End the controller: its clients are refused immediately."""
        self._daemons.pop("slurmctld").terminate()

    def freeze_controller(self) -> None:
        """Let the controller answer no more: who asks it waits."""
        self._daemons["slurmctld"].process.suspend()

    def start_controller(self) -> None:
        """Start the controller again, or let it continue, with the jobs that it knew."""
        if "slurmctld" in self._daemons:
            self._daemons["slurmctld"].process.resume()
            return
        command = ["slurmctld", "-D", "-i", "-f", self.environment["SLURM_CONF"]]
        daemon = self._daemons["slurmctld"] = Daemon(command, self.folder / "log" / "slurmctld", self._surroundings)
        # Nodes that do not find it would try again after a second only.
        _wait("slurmctld to listen", daemon, self._listens)

    @contextmanager
    def in_environment(self) -> Iterator[None]:
        """Let this process, and what it starts, reach it, and no other."""
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "PBS_"))]:
                patch.delenv(name)
            for name, value in self.environment.items():
                patch.setenv(name, value)
            # This host has fewer cores than its nodes say.
            patch.setenv("OMPI_MCA_mpi_yield_when_idle", "1")
            yield

    def close(self) -> None:
        """End jobs and daemons, and leave nothing behind."""
        # Nodes first: what runs there ends with them.
        for name in [*NAMES, "slurmctld", "munged"]:
            if name in self._daemons:
                self._daemons.pop(name).kill()
        if self.network:
            self.network.close()
        shutil.rmtree(self.folder)

    def _start_munged(self) -> None:
        folder = self.folder / "munge"
        folder.chmod(0o711)
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        options = [f"--{name}-file={folder / name}" for name in ("key", "pid", "log", "seed")]
        command = ["munged", "--foreground", "--force", f"--socket={folder / 'socket'}", *options]
        daemon = self._daemons["munged"] = Daemon(command, self.folder / "log" / "munged", self._surroundings)
        _wait("the socket of munged", daemon, (folder / "socket").exists)

    def _node(self, name: str, cpus: int) -> Node:
        host, address = (name, self.network.addresses[name]) if self.network else (_this_host(), "127.0.0.1")
        return Node(name, host, address, self._ports[name], cpus)

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._ports["slurmctld"]), DEADLINE):
            return True
        return False


def _wait(what: str, daemon: Daemon, condition: Callable[[], bool]) -> None:
    begin = time.monotonic()
    while not condition():
        daemon.check()
        if time.monotonic() - begin > DEADLINE:
            raise Trouble(f"waited {DEADLINE} s for {what}; {daemon.tail()}")
        time.sleep(0.005)


def _this_host() -> str:
    return socket.gethostname().partition(".")[0]


def _main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell lets background jobs ignore the former
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt), closing(Slurm(namespaces="--namespaces" in sys.argv)) as slurm:
        print("\n".join(f"export {name}={value}" for name, value in slurm.environment.items()), flush=True)  # noqa: T201
        signal.pause()


if __name__ == "__main__":
    _main()
