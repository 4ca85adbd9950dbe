"""The GPUs of a world in words: how many, who shares one, and whether MPI can send from their memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from workbench.text import count

_AWARE = {
    True: "MPI can send from their memory",
    False: "MPI cannot send from their memory, so copy to the host first",
    None: "whether MPI can send from their memory is not known",
}


def of_ranks(ranks: Iterable[Mapping[str, Any]]) -> str:
    """Return the GPUs of ranks as text; empty if no rank has one.

    Parameters
    ----------
    ranks
        What each rank has registered: ``rank``, ``host``, ``gpus`` (a list of the fields of
        `workbench.gpu.nvml.Gpu`) and ``gpu_aware`` (see `workbench.gpu.mpi_support.is_gpu_aware`).

    Examples
    --------
    >>> gpu = {"uuid": "GPU-1f2e", "name": "NVIDIA H100", "memory": 85e9}
    >>> of_ranks({"rank": rank, "host": "n1", "gpus": [gpu], "gpu_aware": False} for rank in (0, 1))
    '1 GPU (NVIDIA H100); ranks 0, 1 share GPU-1f2e on n1; MPI cannot send from their memory, so copy to the host first'
    """
    users, names, hosts, awareness = defaultdict(list), {}, {}, set()
    for facts in ranks:
        for gpu in facts.get("gpus", ()):
            users[gpu["uuid"]].append(facts["rank"])
            names[gpu["uuid"]], hosts[gpu["uuid"]] = gpu["name"], facts["host"]
            awareness.add(facts.get("gpu_aware"))
    if not users:
        return ""
    shared: dict[tuple[tuple[int, ...], str], list[str]] = defaultdict(list)
    for uuid, sharing in users.items():
        if len(sharing) > 1:
            shared[tuple(sorted(sharing)), hosts[uuid]].append(uuid)
    parts = [
        f"{count(len(users), 'GPU')} ({models(names.values())})",
        *(
            f"ranks {', '.join(map(str, sharing))} share {uuids[0] if len(uuids) == 1 else count(len(uuids), 'GPU')} "
            f"on {host}"
            for (sharing, host), uuids in sorted(shared.items())
        ),
        mpi(min(awareness, key=[False, None, True].index)),
    ]
    return "; ".join(parts)


def models(names: Iterable[str]) -> str:
    """Return the models of GPUs with their numbers, if they differ."""
    found = Counter(names)
    return next(iter(found)) if len(found) == 1 else ", ".join(f"{number} {name}" for name, number in found.items())


def mpi(aware: bool | None) -> str:
    """Return whether MPI can send from the memory of GPUs, as a phrase."""
    return _AWARE[aware]
