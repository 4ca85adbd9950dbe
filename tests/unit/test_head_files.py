"""How many connections the head may have."""

from __future__ import annotations

import resource
import subprocess
import sys

PROGRAM = """
import resource
from workbench.head.__main__ import _allow_connections
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
_allow_connections()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_the_head_may_open_as_many_files_as_the_system_allows():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)

    assert int(ran.stdout) == (65536 if hard == resource.RLIM_INFINITY else min(hard, 65536))
