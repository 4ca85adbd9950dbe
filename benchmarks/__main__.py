"""Run a benchmark of this folder."""

import sys

from benchmarks import SUITE
from workbench import bench
from workbench.cli import EXIT_INTERRUPTED

try:
    sys.exit(bench.main(sys.argv[1:], SUITE))
except KeyboardInterrupt:
    sys.exit(EXIT_INTERRUPTED)
