"""``python -m workbench.server.heartbeat_process``: ask the heads of clusters again and again how they are.

On standard input: lines, each a JSON list of the names of all clusters to ask; its end ends this. On standard output:
every two seconds a line, a JSON object with what was heard since the last one, by name.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

from workbench.deploy import registry
from workbench.deploy.connection import HeadConnection
from workbench.deploy.start import ClusterStarter

# Seconds between two questions, for an answer, and the longest until a head that does not answer is tried again.
_EVERY, _ANSWER, _LONGEST = 2.0, 5.0, 60.0


async def main() -> None:
    """Ask until the end of standard input."""
    heard: dict[str, Any] = {}
    asking: dict[str, asyncio.Task[None]] = {}
    printing = asyncio.create_task(_print(heard))
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        names = set(json.loads(line))
        for name in asking.keys() - names:
            asking.pop(name).cancel()
        for name in names - asking.keys():
            asking[name] = asyncio.create_task(_ask(name, heard))
    for task in (printing, *asking.values()):
        task.cancel()


async def _print(heard: dict[str, Any]) -> None:
    while True:
        await asyncio.sleep(_EVERY)
        sys.stdout.write(json.dumps(heard) + "\n")
        sys.stdout.flush()
        heard.clear()


async def _ask(name: str, heard: dict[str, Any]) -> None:
    pause = _EVERY
    while True:
        try:
            # Whether it runs is told by whether it answers; no scheduler has to be asked.
            job = ClusterStarter(await asyncio.to_thread(registry.read, name), renamable=False, attached=True)
            connection = HeadConnection(job)
            try:
                await connection.open()
                while True:
                    heard[name] = await connection.call("workbench_pulse", _ANSWER)
                    pause = _EVERY
                    await asyncio.sleep(_EVERY)
            finally:
                await connection.close()
        except Exception as error:  # noqa: BLE001  (whatever it is, the others are asked on)
            logging.getLogger(__name__).debug("cluster %s: %s", name, error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST)


if __name__ == "__main__":
    # It talks of every connection that is lost.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    asyncio.run(main())
