"""The configuration of a Slurm for tests."""

from __future__ import annotations

import os
import pwd
import secrets
import socket
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

_CONFIGURATION = """
ClusterName=workbench
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdSpoolDir={folder}/spool/%n
SlurmdPidFile={folder}/spool/%n.pid
# PMIx keeps its sockets there: nodes of one host must not share it
TmpFS={folder}/tmp/%n
MpiDefault=none
EnforcePartLimits=ALL
ReturnToService=2
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0
KillWait={kill_wait}
MinJobAge={min_job_age}
SlurmdTimeout={patience}
MessageTimeout={patience}
GresTypes=gpu
{prolog}
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes=ALL MaxTime=00:05:00 State=UP
PartitionName=small Nodes=n1 MaxTime=INFINITE State=UP
PartitionName=down Nodes=ALL MaxTime=INFINITE State=DOWN
PartitionName=closed Nodes=ALL MaxTime=INFINITE State=UP AllowAccounts=physics
"""


@dataclass(frozen=True)
class Node:
    """A node as the scheduler knows it; its number is the last letter of its name."""

    name: str
    host: str
    address: str
    port: int
    cpus: int

    @property
    def line(self) -> str:
        feature = "odd" if int(self.name[-1]) % 2 else "even"
        return (
            f"NodeName={self.name} NodeHostname={self.host} NodeAddr={self.address} Port={self.port}"
            f" CPUs={self.cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={self.cpus} ThreadsPerCore=1"
            f" RealMemory=4000 Gres=gpu:2 Features={feature}"
        )


def configure(
    folder: Path,
    controller: tuple[str, str, int],
    nodes: Sequence[Node],
    *,
    local: Path | None,
    patience: int,
    kill_wait: int,
    min_job_age: int,
) -> None:
    """Write slurm.conf, and what it refers to, for a controller (host, address, port) and its nodes.

    What jobs have of temporary files goes to `local`.
    """
    prolog = folder / "prolog"
    prolog.write_text(f"#!/bin/sh\necho export TMPDIR={local}\n")
    prolog.chmod(0o755)
    host, address, port = controller
    text = _CONFIGURATION.format(
        host=host,
        address=address,
        port=port,
        user=pwd.getpwuid(os.geteuid()).pw_name,
        folder=folder,
        prolog=f"TaskProlog={prolog}" if local else "",
        patience=patience,
        kill_wait=kill_wait,
        min_job_age=min_job_age,
        nodes="\n".join(node.line for node in nodes),
    )
    (folder / "slurm.conf").write_text(text)
    # Jobs get the numbers of GPUs only if these are devices; no process opens them.
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")


def free_ports(count: int) -> range:
    """Return unused ports, below those which the system hands out by itself."""
    while True:
        first = 10_000 + secrets.randbelow(20_000)
        with suppress(OSError):
            for port in range(first, first + count):
                with closing(socket.socket()) as probe:
                    probe.bind(("", port))
            return range(first, first + count)
