"""A started cluster is one MPI world, rank i is worker i, and all that belongs to it is in order."""

from __future__ import annotations

import os
import re
import socket
import ssl
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
import psutil
import pytest
from distributed import Client
from support.processes import DEADLINE, line_of, processes_of

from workbench import MPICluster
from workbench.comm import certificates
from workbench.deploy.folder import ClusterFolder
from workbench.host import node_dirs


def _look_around(dask_worker: Any) -> dict[str, Any]:
    """Return what a rank sees; runs on the rank, beside its Dask tasks."""
    import os
    import threading

    import distributed

    import workbench.rank

    context = workbench.rank.current()

    def add() -> list[int]:
        return [comm.allreduce(comm.rank) for comm in (context.transport, context.spmd, context.cells)]

    return {
        "name": dask_worker.name,
        "nanny": dask_worker.nanny,
        "nthreads": dask_worker.state.nthreads,
        "own loop": threading.current_thread() is not threading.main_thread(),
        "rank": context.rank,
        "size": context.size,
        "threads": context.threads,
        "sums": context.spmd_thread.submit(add).result(60),
        "OMP": os.environ["OMP_NUM_THREADS"],
        "worker class": isinstance(dask_worker, distributed.Worker),
        "memory": dask_worker.memory_manager.memory_limit,
    }


@pytest.mark.mpi_flavor
@pytest.mark.parametrize("ranks", [1, 3])
def test_rank_i_is_worker_i_of_one_world_with_three_communicators_of_its_own(ranks: int) -> None:
    with MPICluster(ranks, threads=2, memory="200MB", quiet=True) as cluster, Client(cluster) as client:
        # A collective needs all ranks: run() starts it on all of them in parallel.
        seen = sorted(client.run(_look_around_async).values(), key=lambda told: told["rank"])
        assert [told["name"] for told in seen] == list(range(ranks))
        assert [told["rank"] for told in seen] == list(range(ranks))
        for told in seen:
            assert told["sums"] == [sum(range(ranks))] * 3
            assert told | {"rank": 0, "name": 0, "sums": []} == {
                "name": 0, "rank": 0, "sums": [], "nanny": None, "nthreads": 2, "own loop": True, "size": ranks,
                "threads": "multiple", "OMP": "2", "worker class": True, "memory": 200_000_000,
            }  # fmt: skip
        assert [rank["rank"] for rank in cluster.ranks] == list(range(ranks))


async def _look_around_async(dask_worker: Any) -> dict[str, Any]:
    # Off the worker's loop: the collective inside waits for the other ranks.
    import asyncio

    return await asyncio.to_thread(_look_around, dask_worker)


def test_tasks_run_on_the_rank_that_they_are_sent_to(client4: Client) -> None:
    def which() -> int:
        import workbench.rank

        return workbench.rank.current().rank

    futures = [client4.submit(which, workers=[rank], pure=False) for rank in range(4)]
    assert client4.gather(futures) == [0, 1, 2, 3]


def test_an_even_share_of_the_memory_of_its_node_is_the_limit_of_a_rank(client4: Client) -> None:
    from distributed.system import MEMORY_LIMIT

    workers = client4.scheduler_info(n_workers=-1)["workers"].values()
    assert {worker["memory_limit"] for worker in workers} == {MEMORY_LIMIT // 4}


def test_all_files_of_a_cluster_are_the_users_alone(cluster4: MPICluster) -> None:
    record = cluster4.record
    sockets = node_dirs.sockets(record.id)
    # All users can read command lines, and must not learn the names of the folders on other nodes.
    words = [word for process in processes_of(cluster4) for word in line_of(process)]
    assert record.id[:16] in words
    assert not [word for word in words if record.id[16:] in word]
    for folder in (
        ClusterFolder.of(record).path,
        ClusterFolder.of(record).logs,
        sockets,
        node_dirs.spill(record.id),
        node_dirs.shared_memory(record.id),
    ):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    assert {path.name for path in sockets.iterdir()} == {
        "head.sock",
        "template.sock",
        "template.lock",
        *(f"rank-0.{rank}.sock" for rank in range(4)),
    }
    for path in (
        *sockets.iterdir(),
        *ClusterFolder.of(record).logs.iterdir(),
        *ClusterFolder.of(record).path.iterdir(),
    ):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.suffix == ".sh" else 0o600), path


def test_http_is_answered_on_unix_sockets(cluster4: MPICluster) -> None:
    for name in ("head", "rank-0.2"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(DEADLINE)
            connection.connect(str(node_dirs.sockets(cluster4.record.id) / f"{name}.sock"))
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 200"), answer


def _listening(processes: list[psutil.Process]) -> list[tuple[str, int]]:
    found = set()
    for process in processes:
        for connection in process.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                found.add((connection.laddr.ip, connection.laddr.port))
    return sorted(found)


def test_the_settings_of_the_notebook_hold_on_head_and_ranks_and_these_listen_on_the_interface_that_is_set() -> None:
    with (
        dask.config.set({"workbench-test": {"answer": 42}, "workbench.interface": "lo"}),
        MPICluster(1, quiet=True) as cluster,
        Client(cluster) as client,
    ):

        def answer() -> Any:
            import dask

            return dask.config.get("workbench-test.answer")

        assert client.submit(answer).result() == 42
        assert client.run_on_scheduler(answer) == 42
        pids = [cluster.record.process.pid, cluster.ranks[0]["pid"]]
        ports = _listening([psutil.Process(pid) for pid in pids])
    assert [ip for ip, _ in ports] == ["127.0.0.1", "127.0.0.1"]


@pytest.mark.mpi_flavor
def test_no_port_of_a_cluster_answers_without_a_certificate_of_it(cluster4: MPICluster, tmp_path: Any) -> None:
    certificates.make(tmp_path, "stranger")
    ports = _listening(processes_of(cluster4))
    ours = {int(rank["address"].rpartition(":")[2]) for rank in cluster4.ranks}
    ours.add(int(str(cluster4.record.address).rpartition(":")[2]))
    assert ours <= {port for _, port in ports}

    def knock(ip: str, port: int) -> None:
        for greeting in (b"", b"GET / HTTP/1.0\r\n\r\n", b"GET /info/main/workers.html HTTP/1.0\r\n\r\n"):
            assert _ask(ip, port, greeting) == b"", f"{ip}:{port} answered {greeting!r}"
        for certificate in (None, tmp_path):
            assert not _is_served_over_tls(ip, port, certificate), f"{ip}:{port} serves with {certificate}"

    with ThreadPoolExecutor(16) as threads:  # it is a matter of waiting for answers that do not come
        list(threads.map(knock, *zip(*ports, strict=True)))
    assert cluster4.refresh().state == "ready"


def _ask(ip: str, port: int, greeting: bytes) -> bytes:
    """Return what a port answers to a greeting in the clear, if anything."""
    with socket.create_connection((_reachable(ip), port), timeout=DEADLINE) as connection:
        connection.settimeout(0.25)
        try:
            connection.sendall(greeting)
            answer = connection.recv(4096)
        except (TimeoutError, ConnectionError):
            return b""
    # A TLS alert says "this is not TLS" and nothing else. The signature of ZeroMQ, which the controller of cells sends
    # ahead of its handshake, says no more; that strangers do not get through that is tested with the cells.
    says_no_more = answer[:1] == b"\x15" or re.fullmatch(rb"\xff.{8}\x7f.?", answer, re.DOTALL)
    return b"" if says_no_more else answer


def _is_served_over_tls(ip: str, port: int, folder: Any) -> bool:
    """Return whether a port serves a stranger: with no certificate, or with one of another cluster."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if folder is not None:
        context.load_cert_chain(folder / certificates.CERTIFICATE, folder / certificates.KEY)
    try:
        with socket.create_connection((_reachable(ip), port), timeout=DEADLINE) as plain:
            plain.settimeout(0.5)
            with context.wrap_socket(plain) as connection:
                # TLS 1.3 reports a refused certificate after the handshake, with the first read.
                return connection.recv(1) != b""
    except (ssl.SSLError, TimeoutError, ConnectionError):
        return False


def _reachable(ip: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(ip, ip)  # noqa: S104  (it is what a port may listen on)


def test_head_and_ranks_of_a_local_cluster_are_not_seen_from_other_hosts(cluster4: MPICluster) -> None:
    addresses = [str(cluster4.record.address), *(rank["address"] for rank in cluster4.ranks)]
    assert {address.partition("://")[2].partition(":")[0] for address in addresses} == {"127.0.0.1"}


def test_a_cluster_starts_inside_an_mpi_world_and_a_batch_job(monkeypatch: pytest.MonkeyPatch) -> None:
    # What a kernel inherits that was started by srun inside sbatch; unscrubbed, mpiexec refuses or hangs.
    inherited = {
        "SLURM_JOB_ID": "7", "SLURM_JOBID": "7", "SLURM_NODELIST": "n[1-4]", "SLURM_JOB_NODELIST": "n[1-4]",
        "SLURM_NNODES": "4", "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "1(x4)", "SLURM_PROCID": "0",
        "PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.7.0", "PMI_RANK": "0", "PMI_SIZE": "4", "PMI_FD": "9",
        "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "PBS_JOBID": "7.server", "PBS_NODEFILE": "/none",
    }  # fmt: skip
    for name, value in inherited.items():
        monkeypatch.setenv(name, value)
    with MPICluster(2, quiet=True) as cluster, Client(cluster) as client:
        assert len(client.run(os.getpid)) == 2
        assert "SLURM_JOB_ID" in cluster.logs()
