"""The end of a call on its rank."""

from __future__ import annotations

import threading

from support.patience import DEADLINE

from workbench.collective import rank_call
from workbench.collective.rank_call import SpmdCall


def test_a_call_ends_although_a_callback_of_the_garbage_collector_has_swallowed_its_interrupt(monkeypatch):
    interrupt, swallowed = rank_call._interrupt, []
    monkeypatch.setattr(
        rank_call, "_interrupt", lambda thread: interrupt(thread) if swallowed else swallowed.append(thread)
    )
    call = SpmdCall("0", "mean", 0, (0,))

    def is_interrupted():
        call._interrupted = True

    thread = threading.Thread(target=call._attend, args=[is_interrupted], daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert (thread.is_alive(), len(swallowed)) == (False, 1)
