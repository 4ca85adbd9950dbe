"""Run distributed's own tests with connections of mpi://, and with ranks as workers, and compare with tcp.

``python tests/suites/run_distributed.py [--part process,ranks] [--files FILE,FILE] [--only KEYWORDS]``: the outcome of
a test must be the same with mpi:// and tcp. Exceptions are listed below with a reason, or the run fails. Batches of
the tests of a file run in turns with mpi:// and with tcp, so that both meet the same load. A test that then differs is
run again in turns: the tests of distributed have short deadlines, and some pass on a busy machine only now and then.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import comparison
import sources

PARTS = {
    "process": ["test_comms", "test_tcp", "test_core", "test_batched", "test_client", "test_scheduler"],
    "ranks": [
        *["test_client", "test_actor", "test_as_completed", "test_client_executor", "test_dask_collections"],
        *["test_locks", "test_publish", "test_queues", "test_variable", "test_worker", "test_worker_client"],
    ],
}
# Tests, as patterns, whose outcomes may differ, and why.
EXPECTED = {
    "test_client.py::test_dump_cluster_state_sync?msgpack*": "distributed reads no dump with a number as a key, "
    "and an earlier test leaves one in the transfers of a worker, by chance",
    "test_comms.py::test_do_not_share_buffers*": "frames below 64 KiB are read together, into memory of 1 MiB or so",
    "test_comms.py::test_share_buffer_with_header*": "arrays lie in whole lines of 64 bytes, and are not cut to shards",
}
# Tests of a batch, and seconds for a batch with one protocol.
BATCH = 100
PATIENCE = 900 * float(os.environ.get("WORKBENCH_TEST_PATIENCE", "1"))
# What pytest exits with if a test has failed, and if no test is left.
FAILED_TESTS, NO_TESTS = 1, 5
# Runs with each protocol of the tests that differ.
REPEATS = 4


def tests(folder: Path) -> None:
    """Copy the tests to a folder that ranks can import them from: the installed package has none."""
    found = sources.repository("distributed") / "distributed"
    for place in ("tests", "comm/tests"):
        for file in found.joinpath(place).iterdir():
            if file.is_file() and file.name != "__init__.py":
                shutil.copy(file, folder)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a run, if it has not ended, and by that its cluster."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def outcomes(folder: Path, protocol: str, part: str, selection: list[str], first: int = 0) -> dict[str, str]:
    """Run a batch of the selected tests of a part with a protocol, from a number on; return the outcome of each.

    A test whose run ends has no outcome.
    """
    here = Path(__file__).parent
    with tempfile.NamedTemporaryFile(prefix=f"{protocol}-{part}-", suffix=".json", dir=folder, delete=False) as made:
        results = Path(made.name)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])]),
        "WORKBENCH_SUITE": f"{protocol}:{part}:{first}:{first + BATCH}",
        "WORKBENCH_SUITE_OUTCOMES": str(results),
        # Everything is large.
        "DASK_WORKBENCH__COMM__THRESHOLD": "1B",
    }
    (folder / "pytest.ini").write_text("[pytest]\n")
    options = ["-q", "--no-header", "--tb=native", "-p", "distributed_plugin", "-p", "no:asyncio", "-W", "ignore"]
    options += ["-p", "no:cacheprovider", *selection]
    with open(folder / f"{protocol}-{part}.log", "a", encoding="utf-8") as log:
        command = [sys.executable, "-m", "pytest", *options]
        with subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log) as process:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                print(f"{part} with {protocol}: the batch from test {first} on was ended after {PATIENCE:.0f} s")
            finally:
                end(process)
    if process.returncode not in (0, FAILED_TESTS, NO_TESTS):
        print(f"{part} with {protocol}: the batch from test {first} on ended early; the reason is in {log.name}")
    return dict(json.loads(line) for line in results.read_text(encoding="utf-8").splitlines())


def compare(folder: Path, part: str, file: str, keywords: str) -> int:
    """Run the tests of a file with both protocols, print what differs, and return how much of that is not expected."""
    ours: dict[str, str] = {}
    control: dict[str, str] = {}
    arms = {"mpi": ours, "tcp": control}
    for first in itertools.count(0, BATCH):
        batch = [outcomes(folder, protocol, part, ["-k", keywords, f"{file}.py"], first) for protocol in arms]
        if not any(batch):
            break
        for known, found in zip(arms.values(), batch, strict=True):
            known.update(found)
        print(f"{part}, {file}: {len(ours)} with mpi, {len(control)} with tcp", flush=True)
    again = comparison.unexplained(ours, control, EXPECTED)
    for _, first in itertools.product(range(REPEATS), range(0, len(again), BATCH)):
        for protocol, known in arms.items():
            comparison.add(known, outcomes(folder, protocol, part, again[first : first + BATCH]))
    if not control:
        print(f"{part}, {file}: no test of the control ended, or none is selected")
        return 1
    return comparison.compare(f"{part}, {file}", ours, control, EXPECTED)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--part", default=",".join(PARTS), help="parts to run (default: %(default)s)")
    options.add_argument("--files", default="", help="files to run, without .py (default: those of the parts)")
    options.add_argument("--only", default="", help="tests to run, as keywords of pytest")
    given = options.parse_args()
    parts = given.part.split(",")
    known = {file for files in PARTS.values() for file in files}
    wanted = set(given.files.split(",")) if given.files else known
    if unknown := [name for name in parts if name not in PARTS] + sorted(wanted - known):
        options.error(f"unknown: {', '.join(unknown)}; there are {', '.join(PARTS)} with {', '.join(sorted(known))}")
    folder = Path(tempfile.mkdtemp(prefix="workbench-distributed-"))
    tests(folder)
    print(f"logs in {folder}", flush=True)
    files = [(part, file) for part in parts for file in PARTS[part] if file in wanted]
    unexpected = sum([compare(folder, part, file, given.only) for part, file in files])
    if not unexpected:
        shutil.rmtree(folder)
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
