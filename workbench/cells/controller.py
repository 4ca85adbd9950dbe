"""``python -m workbench.cells.controller``: the router of code and output between notebooks and the engines of a world.

The program is ipyparallel's controller in one process. It prints one line of JSON with the connections for engines and
for clients, and serves until it is ended. The controller makes its keys, keeps them in memory, and sends them through
this pipe alone.
"""

from __future__ import annotations

import argparse
import json
import logging
import secrets
import threading
import time
from typing import Any

from ipyparallel.controller import heartmonitor
from ipyparallel.controller.app import IPController
from traitlets import Callable
from traitlets.config import Config

from workbench.cells.protocol import REGISTER_S

# Milliseconds between heartbeats: an engine is registered at the second heartbeat.
_PERIOD = 150
# Seconds between heartbeats while no engine registers: each heartbeat runs Python code for each engine.
_REST = 60.0
# Heartbeats that an engine may miss. The head knows which ranks live, since it watches the workers.
_PATIENCE = 100_000


class Monitor(heartmonitor.HeartMonitor):  # type: ignore[misc]
    """A monitor that is quick only while an engine waits for its registration."""

    is_awaited = Callable()
    """Returns whether an engine waits for its registration."""

    def beat(self) -> None:
        """Send a heartbeat if one is due."""
        if self.is_awaited() or time.monotonic() - self.tic >= _REST:
            super().beat()


class Controller(IPController):  # type: ignore[misc]
    """A controller in one process that prints its connections, and writes no connection file."""

    def init_hub(self) -> None:
        """Set up the sockets; the monitor of heartbeats is a thread, since a process would outlive a kill."""
        self._connections: dict[str, dict[str, Any]] = {}
        super().init_hub()
        self.heartmonitor_process = threading.Thread(
            target=heartmonitor.start_heartmonitor,
            kwargs={
                "is_awaited": lambda: bool(self.hub.incoming_registrations),
                # The monitor has a separate log, with a line for each heartbeat of each engine that has ended.
                "log_level": logging.CRITICAL,
                "ping_url": self.engine_url("hb_ping"),
                "pong_url": self.engine_url("hb_pong"),
                "monitor_url": self.monitor_url,
                "config": self.config,
                "curve_publickey": self.curve_publickey,
                "curve_secretkey": self.curve_secretkey,
            },
            daemon=True,
        )

    def to_work_dir(self) -> None:
        """Do nothing: the modules in the folder of the user must not replace those of libraries."""

    def save_connection_dict(self, fname: str, cdict: dict[str, Any]) -> None:
        """Keep the connection that ipyparallel would write to a file."""
        self._connections["engine" if fname == self.engine_json_file else "client"] = cdict

    def cleanup_connection_files(self) -> None:
        """Do nothing: this controller writes no connection file."""

    def start(self) -> None:
        """Serve, and print the connections as soon as the loop runs: all sockets are bound then."""
        self.loop.add_callback(lambda: print(json.dumps(self._connections), flush=True))  # noqa: T201  (the head reads it)
        super().start()


def main() -> None:
    """Run the controller until it is ended."""
    parser = argparse.ArgumentParser(prog="workbench.cells.controller")
    parser.add_argument("--address", required=True, help="address to bind")
    parser.add_argument("--folder", required=True, help="folder for the files of ipyparallel")
    arguments = parser.parse_args()
    settings = Config()
    settings.ProfileDir.location = arguments.folder
    # Only the processes that receive the connections know this key: messages are signed as well as encrypted.
    settings.Session.key = secrets.token_hex(32).encode()
    settings.HeartMonitor.period = _PERIOD
    settings.HeartMonitor.max_heartmonitor_misses = _PATIENCE
    settings.TaskScheduler.scheme_name = "leastload"
    settings.IPController.registration_timeout = int(REGISTER_S)
    settings.IPController.ip = arguments.address
    settings.IPController.location = arguments.address
    settings.IPController.enable_curve = True
    settings.IPController.use_threads = True
    settings.IPController.db_class = "ipyparallel.controller.dictdb.NoDB"
    heartmonitor.HeartMonitor = Monitor
    controller = Controller(config=settings, log_level="CRITICAL")
    controller.initialize([])
    controller.start()


if __name__ == "__main__":
    main()
