"""Run the tests on Open MPI and on MPICH, and print the totals: passed, failed, minutes, and the ten slowest.

``python .ci/tests.py [--rounds N] [--busy N] [--processes N] [FILE …]``
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_PYTEST = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())["tool"]["pytest"]
# A second `-m` takes the place of the one in pyproject.toml.
EVERY_DAY = _PYTEST["ini_options"]["addopts"][-1]
# Options of pytest for an environment, and the paths with such tests: modules of other tests need not be loaded.
FLAVORED = [str(file) for file in Path("tests/cluster").glob("test_*.py") if "mpi_flavor" in file.read_text()]
RUNS = {
    ".venv": ([], ["tests"]),
    ".venv-mpich": (["-m", f"mpi_flavor and {EVERY_DAY}"], ["tests/mpi", *sorted(FLAVORED)]),
}
SLOWEST = 10
# Kept after the run: the seconds of each test of each environment, the slowest first.
TIMES = Path("build/times.json")
# The status of a pytest that has found no test: the named files have no tests for the other MPI.
NO_TESTS = 5
# Ends with its parent, however that ends.
BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(1_000_000): pass"


@contextlib.contextmanager
def beside(loops: int) -> Iterator[None]:
    """Keep this number of processes busy meanwhile."""
    started = [subprocess.Popen([sys.executable, "-I", "-S", "-c", BUSY, str(os.getpid())]) for _ in range(loops)]
    try:
        yield
    finally:
        for loop in started:
            loop.kill()
            loop.wait()


def run(environment: str, processes: int, files: list[str], times: Path) -> int:
    """Run the tests of the files in an environment, of all if there are none, and return the exit status of pytest."""
    marked, folders = RUNS[environment]
    # A test that hangs ends its process, and with it the run. On a busy machine a test may wait for several events.
    hang = 300 * float(os.environ.get("WORKBENCH_TEST_PATIENCE", "1"))
    command = [f"{environment}/bin/python", "-m", "pytest", "-n", str(processes), "--max-worker-restart", "0"]
    command += ["-o", f"faulthandler_timeout={hang:g}", *marked, *(files or folders)]
    return subprocess.run(command, env=os.environ | {"WORKBENCH_TEST_TIMES": str(times)}, check=False).returncode


def main() -> int:
    """Run all tests, print the totals, and return 1 if a test has failed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=1, help="how often")
    options.add_argument("--busy", type=int, default=0, help="processes that do nothing but keep a core busy meanwhile")
    options.add_argument("--processes", type=int, default=3, help="in which tests run at a time")
    options.add_argument("files", nargs="*", help="or tests of files, as pytest names them")
    given = options.parse_args()
    outcomes: Counter[str] = Counter()
    seconds: Counter[tuple[str, str]] = Counter()
    broken = []
    began = time.monotonic()
    TIMES.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, beside(given.busy):
        times = Path(folder, "times.json")
        for round_ in range(1, given.rounds + 1):
            for environment in RUNS:
                status = run(environment, given.processes, given.files, times)
                found = json.loads(times.read_text()) if times.exists() else {"outcomes": {}, "seconds": {}}
                times.unlink(missing_ok=True)
                outcomes.update(found["outcomes"])
                seconds.update({(environment, test): taken for test, taken in found["seconds"].items()})
                if status and not (given.files and status == NO_TESTS):
                    broken.append(f"round {round_} in {environment}: pytest ended with status {status}")
    if outcomes["skipped"] and "WORKBENCH_REQUIRE_SLURM" in os.environ:
        broken.append(f"{outcomes['skipped']} tests were skipped, here where all have to run; -ra above says why")
    lines = [json.dumps([round(taken, 1), *test]) for test, taken in seconds.most_common()]
    TIMES.write_text("[" + ",\n".join(lines) + "]\n")
    print(f"\nthe {SLOWEST} slowest tests, seconds in all; {TIMES} has all of them:")
    for (environment, test), taken in seconds.most_common(SLOWEST):
        print(f"{taken:7.1f} {environment} {test}")
    print(*broken, sep="\n", end="\n" if broken else "")
    print(
        f"{outcomes['passed']} passed, {outcomes['failed']} failed, {outcomes['skipped']} skipped "
        f"in {(time.monotonic() - began) / 60:.1f} minutes"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
