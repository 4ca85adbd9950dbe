"""The end of a child process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE

from workbench.host.processes import end

# A process that has started another one, which keeps its pipes.
KEEPS = """
import subprocess, sys
print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid, flush=True)
sys.stdin.read()
"""


async def test_a_process_ends_though_another_one_keeps_its_pipes():
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", KEEPS, stdin=PIPE, stdout=PIPE)
    keeper = int(await process.stdout.readline())

    try:
        await end(process, 0.1, "a process")

        assert process.returncode == -signal.SIGTERM
        assert await process.stdout.read() == b""  # no other process ends the output
        assert process.stdin.is_closing()
    finally:
        os.kill(keeper, signal.SIGKILL)
