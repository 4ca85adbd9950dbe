"""Run distributed's own tests with connections of mpi://, and with ranks as workers, and compare with tcp.

``python tests/suites/run_distributed.py [--part process,ranks] [--only KEYWORDS]``: a test has to come to the same with
mpi:// as with tcp. What does not is listed below with its reason, or the run fails.
"""

from __future__ import annotations

import argparse
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
# Tests, as patterns, that need not come to the same, and why.
EXPECTED = {
    "test_comms.py::test_do_not_share_buffers*": "frames below 64 KiB are read together, into memory of 1 MiB or so",
    "test_comms.py::test_share_buffer_with_header*": "arrays lie in whole lines of 64 bytes, and are not cut to shards",
}
# Seconds for all tests of a part with one protocol.
PATIENCE = 3600


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


def outcomes(folder: Path, protocol: str, part: str, keywords: str) -> dict[str, str]:
    """Run the tests of a part with a protocol; return what each of them came to."""
    here = Path(__file__).parent
    told = folder / f"{protocol}-{part}.json"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])]),
        "WORKBENCH_SUITE": f"{protocol}:{part}",
        "WORKBENCH_SUITE_OUTCOMES": str(told),
        # Everything is large.
        "DASK_WORKBENCH__COMM__THRESHOLD": "1B",
    }
    (folder / "pytest.ini").write_text("[pytest]\n")
    options = ["-q", "--no-header", "--tb=line", "-p", "distributed_plugin", "-p", "no:asyncio", "-W", "ignore"]
    options += ["-p", "no:cacheprovider", "-k", keywords, *[f"{name}.py" for name in PARTS[part]]]
    with open(folder / f"{protocol}-{part}.log", "w", encoding="utf-8") as log:
        command = [sys.executable, "-m", "pytest", *options]
        with subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log) as process:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                print(f"{part} with {protocol} was ended after {PATIENCE} s")
            finally:
                end(process)
    return dict(json.loads(line) for line in told.read_text(encoding="utf-8").splitlines())


def compare(folder: Path, part: str, keywords: str) -> int:
    """Run a part with both protocols, print what differs, and return how many differences are not expected."""
    ours, control = (outcomes(folder, protocol, part, keywords) for protocol in ("mpi", "tcp"))
    return comparison.compare(f"{part}, logs in {folder}", ours, control, EXPECTED)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--part", default=",".join(PARTS), help="parts to run (default: %(default)s)")
    options.add_argument("--only", default="", help="tests to run, as keywords of pytest")
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="workbench-distributed-"))
    tests(folder)
    unexpected = sum([compare(folder, part, given.only) for part in given.part.split(",")])
    if not unexpected:
        shutil.rmtree(folder)
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
