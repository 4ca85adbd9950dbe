"""The connection of a notebook to the engines, through ipyparallel's controller."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future as Promise
from dataclasses import dataclass, field
from typing import Any, NoReturn

from workbench.cells import namespaces
from workbench.cells.protocol import ENGINES_S, REACH, REACH_S
from workbench.cells.run_cell import Ping, RunCell
from workbench.errors import HeadUnreachable, InvalidRequest
from workbench.hints import Command
from workbench.session.current import notebook_id

# The ports of a controller that a client uses.
_PORTS = ("registration", "control", "mux", "task", "broadcast", "notification", "iopub")
# Seconds for one try to reach the engines.
_TRY = 0.25
# Seconds for a new client to list all engines.
_LIST = 2.0


@dataclass(frozen=True)
class CellOutput:
    """One output of a rank."""

    kind: str
    """``stdout``, ``stderr``, ``display``, or ``result`` (the value of the last line)."""
    text: str = ""
    """Text of a stream; empty for the other kinds."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Displayed data by MIME type."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the displayed data."""


def connect(connection: dict[str, Any], kind: Any = None) -> Any:
    """Return an `ipyparallel.Client` of a controller.

    Parameters
    ----------
    connection
        As ipyparallel writes it to a file for clients.
    kind
        A subclass of `ipyparallel.Client`. Default: this class.

    Raises
    ------
    HeadUnreachable
        If the controller does not answer.
    """
    from ipyparallel import Client

    try:
        return (kind or Client)(dict(connection), timeout=REACH_S)
    except (OSError, TimeoutError) as error:
        raise unreachable(connection) from error


def unreachable(connection: dict[str, Any]) -> HeadUnreachable:
    """Return the error of a controller or of engines that do not answer."""
    host = connection["interface"].partition("://")[2]
    return HeadUnreachable(
        f"the engines on the ranks did not answer within {REACH_S:.0f} s. One of the hosts is overloaded, or this "
        f"host does not reach the separate ports of {host} for cells.",
        hint="MPICluster.attach(name, ssh_tunnel=host) forwards these ports: use a client of that cluster object.",
    )


def forwarded(connection: dict[str, Any], forward: Callable[[list[str]], list[str]]) -> dict[str, Any]:
    """Return a connection to the addresses that `forward` returns for those of `connection`, all on one host."""
    local = forward([f"{connection['interface']}:{connection[name]}" for name in _PORTS])
    interface = local[0].rpartition(":")[0]
    ports = {name: int(address.rpartition(":")[2]) for name, address in zip(_PORTS, local, strict=True)}
    return connection | ports | {"interface": interface, "location": interface.partition("://")[2]}


def of_cluster(cluster: Any, call: Callable[..., Any]) -> Any:
    """Return an `ipyparallel.Client` of the ranks of a `workbench.MPICluster`, whose head `call` asks."""
    reach = cluster.sync(call, REACH, ENGINES_S)
    connection = forwarded(reach["connection"], functools.partial(cluster.forward, "engines"))
    return rank_client(connection, len(reach["idents"]), cluster.get_client, notebook_id())


def rank_client(connection: dict[str, Any], ranks: int, dask: Callable[[], Any], namespace: str) -> Any:
    """Return an `ipyparallel.Client` without the operations that would end engines, or open the ranks to others.

    Parameters
    ----------
    connection
        As of `connect`.
    ranks
        Number of engines.
    dask
        Returns the `distributed.Client` of the cluster.
    namespace
        Namespace of the code of views, as of `workbench.cells.namespaces`.

    Raises
    ------
    HeadUnreachable
        If the controller does not answer, or does not list all engines.
    """
    from ipyparallel import Client, EngineError

    class RankClient(Client):  # type: ignore[misc]
        def become_dask(self, *args: Any, **kwargs: Any) -> Any:
            # Those of ipyparallel would start a scheduler without TLS, on which all users of the hosts may run code.
            return dask()

        def stop_dask(self, *args: Any, **kwargs: Any) -> None:
            pass

        def shutdown(self, *args: Any, **kwargs: Any) -> NoReturn:
            raise InvalidRequest(
                "the engines of ipyparallel() are ranks: they live as long as their world, and receive no signals.",
                hint=("End the cluster: ", Command("stop")),
            )

        def clear(self, targets: Any = None, block: bool | None = None) -> Any:
            # The request of ipyparallel would clear the namespace of the last cell, which may be of another notebook.
            return self[targets if targets is not None else slice(None)].execute("%reset -f", block=block)

        become_distributed, stop_distributed, send_signal = become_dask, stop_dask, shutdown

    deadline = time.monotonic() + REACH_S
    while True:
        client = connect(connection, RankClient)
        try:
            client.wait_for_engines(ranks, timeout=_LIST, interactive=False)
        except (TimeoutError, EngineError):
            # A client misses engines that register between its question to the controller and its subscription.
            client.close()
            if time.monotonic() > deadline:
                raise unreachable(connection) from None
        else:
            client.session.metadata[namespaces.FIELD] = namespace
            return client


class EngineClient:
    """A connection to the controller of the engines.

    Parameters
    ----------
    connection
        As of `connect`.
    """

    def __init__(self, connection: dict[str, Any]) -> None:
        self._connection = connection
        self._client = connect(connection)
        self._reached: set[str] = set()

    @staticmethod
    def prepare() -> None:
        """Import ipyparallel, which takes long."""
        import ipyparallel  # noqa: F401

    def wait_until_reachable(self, idents: Mapping[int, str]) -> None:
        """Return when messages reach the engines and return: ZeroMQ drops earlier messages without an error.

        Raises
        ------
        HeadUnreachable
            If the engines do not answer.
        """
        deadline, pause = time.monotonic() + REACH_S, _TRY
        missing = {rank: ident for rank, ident in idents.items() if ident not in self._reached}
        tries: dict[int, list[tuple[Promise[Any], Promise[Any]]]] = {rank: [] for rank in missing}
        while missing:
            for rank, ident in missing.items():
                tries[rank].append(self._echo(ident))
            until, pause = time.monotonic() + pause, 2 * pause
            while missing and time.monotonic() < until:
                # On a busy machine an earlier message may be answered late.
                for rank in [rank for rank in missing if any(map(_came, tries[rank]))]:
                    self._reached.add(missing.pop(rank))
                time.sleep(0.002)
            if missing and time.monotonic() > deadline:
                raise unreachable(self._connection)

    def _echo(self, ident: str) -> tuple[Promise[Any], Promise[Any]]:
        return self._send(ident, Ping(), lambda _: None, namespaces.SHARED)

    def send(self, ident: str, cell: RunCell, take: Callable[[CellOutput], None]) -> tuple[Promise[Any], Promise[Any]]:
        """Send a cell to an engine.

        Parameters
        ----------
        take
            Called with each output of the cell, in another thread.

        Returns
        -------
        reply, output
            Futures: the outcome of the cell, and one that is done when all output has arrived.
        """

        def taken(message: dict[str, Any]) -> None:
            if (item := _item(message)) is not None:
                take(item)

        return self._send(ident, cell, taken, cell.namespace)

    def _send(
        self, ident: str, what: Any, take: Callable[[dict[str, Any]], None], namespace: str
    ) -> tuple[Promise[Any], Promise[Any]]:
        client = self._client
        reply = client.send_apply_request(
            # A view would ask the hub for the engines, which the head has sent already. The call uses the stream and
            # not the socket of the stream: the stream does not see messages that arrive during a send on the socket.
            client._mux_stream,  # noqa: SLF001
            what,
            ident=ident.encode(),
            metadata={namespaces.FIELD: namespace},
            message_future_hook=lambda future: future.iopub_callbacks.append(take),
        )
        return reply, reply.output

    def close(self) -> None:
        """Disconnect in another thread: the garbage collector may call this method, and must not wait for a thread."""
        threading.Thread(target=self._client.close, name="engine-link-close", daemon=True).start()


def _came(echo: tuple[Promise[Any], Promise[Any]]) -> bool:
    return all(promise.done() for promise in echo)


def _item(message: dict[str, Any]) -> CellOutput | None:
    """Return the output in a message of Jupyter; None if the message has none."""
    kind, content = message["header"]["msg_type"], message["content"]
    if kind == "stream":
        return CellOutput(content["name"], content["text"])
    if kind in {"display_data", "execute_result", "update_display_data"}:
        shown = "result" if kind == "execute_result" else "display"
        return CellOutput(shown, data=content["data"], metadata=content.get("metadata") or {})
    return None
