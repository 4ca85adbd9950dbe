"""Text of users in the messages of ranks and notebooks, whatever the characters and however long."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from distributed.protocol import dumps, loads

from workbench import report
from workbench.call_stack import whereabouts
from workbench.cells import rank as cells_rank
from workbench.collective import request, serialize
from workbench.mpi import context
from workbench.tune.trial import RankTrial

TEXTS = {
    "not UTF-8": ("caf\udce9", r"caf\udce9"),
    "NUL": ("before\0after", "before"),
    "right to left": ("\u202ecod.exe\u2066", r"\u202ecod.exe\u2066"),
    "10 MB": ("x" * 10_000_000, "xx [... "),
    "escape sequence": ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
}


class UnpicklableError(Exception):
    def __reduce__(self):
        raise TypeError("cannot be pickled")


class FailsToArrive:
    def __init__(self, text):
        self.text = text

    def __reduce__(self):
        return fail, (self.text,)


def fail(text):
    raise ValueError(text)


@pytest.fixture
def sent(monkeypatch):
    """Return the list of the messages that this process sends as a rank."""
    messages = []
    monkeypatch.setattr(context, "is_rank", lambda: True)
    monkeypatch.setattr(context, "current", lambda: SimpleNamespace(rank=1, world=0))
    for module in ("metrics.report", "tune.trial"):
        monkeypatch.setattr(f"workbench.{module}.tell", lambda _, message: messages.append(message))
    return messages


def of_an_error(text, sent):
    sent.append(serialize.pack_error(UnpicklableError(text)))


def of_a_cell(text, sent):
    cells = SimpleNamespace(_tell=lambda _, **message: sent.append(message), _context=SimpleNamespace(rank=1))
    cells_rank.Cells._report(cells, "cell", "error", text)


def of_a_name_of_a_cell(text, sent):
    sent.append(cells_rank._unpack(serialize.dumps(FailsToArrive(text)))[1])


def of_a_position(text, sent):
    names = {"sent": sent, "whereabouts": whereabouts, "ident": threading.get_ident()}
    file = f"folder/{text.replace(chr(0), '')}.py"
    exec(compile("sent.append(whereabouts(ident, 0.0))", file, "exec"), names)  # noqa: S102  (for the name of the file)


def of_a_report(text, sent):
    report(1, name=text, **{text: 1.0})


def of_a_trial(text, sent):
    trial = RankTrial(SimpleNamespace(rank=0), "topic", 3, text)
    trial._ask = lambda *_: None
    trial.report(1.0, 1)


def of_a_call(text, sent):
    options = {"result": "ranks", "limit": None, "timeout": None}
    sent.append(request.request(len, (), {}, client=SimpleNamespace(id="1"), name=text, **options).message)


@pytest.mark.parametrize(("text", "shown"), TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize(
    "message", [of_an_error, of_a_cell, of_a_name_of_a_cell, of_a_position, of_a_report, of_a_trial, of_a_call]
)
def test_any_text_can_be_sent_is_short_and_is_no_order_to_a_terminal(message, text, shown, sent, monkeypatch):
    monkeypatch.setattr(request, "current_client", lambda client: client)
    message(text, sent)

    frames = dumps(sent)
    assert sum(map(len, frames)) < 100_000
    texts = [*strings(loads(frames))]
    assert any(shown in each for each in texts)
    assert not {"\0", "\x1b", "\u202e"} & {*"".join(texts)}


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for item in pair for text in strings(item))
    elif isinstance(value, list | tuple):
        yield from (text for item in value for text in strings(item))
