"""``python -m workbench.lab.server.heartbeat_process``: poll the heads of clusters.

Each line of standard input is a JSON list with the names of all clusters to poll; the end of standard input ends the
process. Every two seconds the process prints a line, a JSON object with the heartbeats since the last line by name.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

from workbench.cancellation import run_to_end
from workbench.deploy import registry
from workbench.deploy.connection import HeadConnection
from workbench.deploy.start import ClusterStarter

# Seconds between two polls, for an answer, and the longest until the next poll of a head that does not answer.
_EVERY, _ANSWER, _LONGEST = 2.0, 5.0, 60.0


async def main() -> None:
    """Poll until the end of standard input."""
    heartbeats: dict[str, Any] = {}
    polling: dict[str, asyncio.Task[None]] = {}
    printing = asyncio.create_task(_print(heartbeats))
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        names = set(json.loads(line))
        for name in polling.keys() - names:
            polling.pop(name).cancel()
        for name in names - polling.keys():
            polling[name] = asyncio.create_task(_poll(name, heartbeats))
    for task in (printing, *polling.values()):
        task.cancel()


async def _print(heartbeats: dict[str, Any]) -> None:
    while True:
        await asyncio.sleep(_EVERY)
        sys.stdout.write(json.dumps(heartbeats) + "\n")
        sys.stdout.flush()
        heartbeats.clear()


async def _poll(name: str, heartbeats: dict[str, Any]) -> None:
    pause = _EVERY
    while True:
        try:
            # The answer of the head shows that the cluster runs; no query of a scheduler is necessary.
            job = ClusterStarter(await asyncio.to_thread(registry.read, name), renamable=False, attached=True)
            connection = HeadConnection(job)
            try:
                await connection.open()
                while True:
                    heartbeats[name] = await connection.call("workbench_pulse", _ANSWER)
                    pause = _EVERY
                    await asyncio.sleep(_EVERY)
            finally:
                await run_to_end(connection.close())
        except Exception as error:  # noqa: BLE001  (no error may end the polls of the other heads)
            logging.getLogger(__name__).debug("cluster %s: %s", name, error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST)


if __name__ == "__main__":
    # It logs every connection that is lost.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    asyncio.run(main())
