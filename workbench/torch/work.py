"""What torch.distributed gets of an operation: one that is over, or one that is under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from workbench.mpi.polling import Deadline, keep_alive, poll, release

_FOREVER = timedelta(0)


def completed(result: list[Any], opts: Any = None) -> Any:
    """Return the work of an operation that is over.

    Torch only waits for the work of an operation with ``async_op=False`` in `opts`; one work serves all of these.
    """
    return _completed(result) if getattr(opts, "asyncOp", True) else _OVER


def _completed(result: list[Any]) -> Any:
    # Whoever waits for the future waits for the copies to these GPUs, too.
    future: Any = torch.futures.Future(devices=list({tensor.device for tensor in _tensors(result) if tensor.is_cuda}))
    future.set_result(result)
    c10d: Any = torch._C._distributed_c10d  # noqa: SLF001  (what torch's own groups in Python call)
    return c10d._create_work_from_future(future)  # noqa: SLF001


def _tensors(result: list[Any]) -> Iterator[torch.Tensor]:
    for part in result:
        if isinstance(part, torch.Tensor):
            yield part
        else:
            yield from _tensors(part)


_OVER = _completed([])


class PostedMessage(dist.Work):
    """A message that is under way.

    Parameters
    ----------
    request
        Of the communicator.
    held
        What MPI reads or writes.
    finish
        Called once the message has arrived, with its status.
    """

    def __init__(
        self, request: MPI.Request, held: object, finish: Callable[[MPI.Status], None] = lambda _: None
    ) -> None:
        super().__init__()
        self._request, self._finish, self._held = request, finish, held
        self._source = -1
        self._over = False

    def __del__(self) -> None:
        """Keep what MPI still reads or writes, if the program does not wait for the message."""
        if not self._over:
            release()
            keep_alive(self._request, self._held)

    def wait(self, timeout: timedelta = _FOREVER) -> bool:
        """Return when the message has arrived; raises `CollectiveFailed` after the timeout, if there is one."""
        if not self._over:
            status = MPI.Status()
            if timeout > _FOREVER:
                within = Deadline(timeout.total_seconds(), "a message of torch.distributed did not arrive")
                poll(lambda: self._request.Test(status), within.check)
            else:
                self._request.Wait(status)
            self._end(status)
        return True

    def is_completed(self) -> bool:
        """Return whether the message has arrived, without waiting for it."""
        status = MPI.Status()
        if not self._over and self._request.Test(status):
            self._end(status)
        return self._over

    def _end(self, status: MPI.Status) -> None:
        self._over, self._source, self._held = True, status.source, None
        self._finish(status)

    def is_success(self) -> bool:
        """Return whether the message has arrived."""
        return self._over

    def source_rank(self) -> int:
        """Return the rank in the group that has sent the message."""
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Wait for the message, and return a future that is over."""
        self.wait()
        future: Any = torch.futures.Future()
        future.set_result([])
        return future
