"""A notebook in which calls are made and interrupted: one for each line that comes, a way to wait for rank 1."""

from __future__ import annotations

import sys
import time

from distributed import Client

from support.spmd import hang, loop, total
from workbench import MPICluster, run_on_ranks
from workbench.collective import protocol


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(name: str) -> None:
    protocol.CLIENT_CALL_END_S = 30.0  # ranks may take longer than a user wants to wait
    with MPICluster.attach(name, quiet=True) as cluster, Client(cluster) as client:
        say("ready")
        for line in sys.stdin:
            way = line.strip()
            call = (loop, 1) if way == "loop" else (hang, way, 1, "/never")
            try:
                run_on_ranks(*call, client=client)
            except KeyboardInterrupt as interrupt:
                notes = " ".join(getattr(interrupt, "__notes__", []))
                say(f"interrupted {time.time()} {notes}")
            say(str(run_on_ranks(total, client=client, result="root")))


if __name__ == "__main__":
    main(sys.argv[1])
