"""A browser that listens to the websocket of the API."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

from server.running import API
from support.processes import DEADLINE


class Browser:
    """What a browser knows of the clusters from the messages that it has received."""

    def __init__(self, socket):
        self._socket = socket
        self.heard = []
        self.clusters, self.starts, self.broken, self.pulses, self.ended = {}, [], [], {}, []

    async def say(self, **message):
        await self._socket.write_message(json.dumps(message))

    async def hear(self):
        """Take the next message."""
        message = json.loads(await self._socket.read_message())
        self.heard.append(message)
        if message["type"] == "pulse":
            self.pulses = message["pulses"]
            return
        if message["type"] == "state":
            self.clusters = {}
        self.clusters |= {its["name"]: its for its in message["clusters"]}
        for name in message.get("gone", ()):
            del self.clusters[name]
        self.starts, self.broken = message["starts"], message["broken"]
        self.ended = message.get("ended", self.ended)

    async def until(self, condition, within=DEADLINE):
        """Listen until something is the case; return what it says."""
        async with asyncio.timeout(within):
            while not (found := condition()):
                await self.hear()
        return found

    def start(self, key):
        """Return the start of an id, if it is listed."""
        return next((its for its in self.starts if its["id"] == key), None)


@asynccontextmanager
async def browser(server):
    """Give a browser that has received the current state."""
    async with server.join(f"{API}events") as socket:
        its = Browser(socket)
        await its.hear()
        try:
            yield its
        finally:
            socket.close()
            async with asyncio.timeout(DEADLINE):
                while await socket.read_message() is not None:
                    pass  # what was on its way
