"""What `%%mpi` makes of its first line, and of what ranks say."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from IPython.core.completer import CompletionContext
from IPython.core.error import UsageError
from support.raised import raises

from workbench.cells import client as cells_client
from workbench.cells import engine_client
from workbench.cells.client import check_syntax
from workbench.cells.engine_client import CellOutput
from workbench.cells.magics import CellMagics, _leading_options, _parse, _ranks, match
from workbench.cells.output import CellResult, LinePrefixer, failures, grouped, with_label
from workbench.cells.run_cell import CellOutcome
from workbench.errors import CollectiveFailed, CollectiveTimeout, InvalidRequest, RankLost
from workbench.positions import label


def test_names_and_options_may_come_in_any_order():
    assert _parse("X --ranks 0,3 y --stream --out=sums") == (
        ["X", "y"],
        {"--ranks": "0,3", "--stream": "", "--out": "sums"},
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--rank 3", "%%mpi has no option '--rank': did you mean '--ranks'"),
        ("X --out", "--out needs a value"),
        ("'X", "no closing quotation. Close every quote"),
    ],
)
def test_a_line_that_cannot_be_is_refused(line, why):
    with pytest.raises(InvalidRequest, match=why):
        _parse(line)


def test_a_comment_may_follow_the_names():
    assert _parse("X y  # the blocks, and what they weigh") == (["X", "y"], {})


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--ranks 0-1 X.sum() - 2", ("X.sum() - 2", {"--ranks": "0-1"})),
        ("--stream {rank: 1}", ("{rank: 1}", {"--stream": ""})),
        ("--timeout '2 minutes' rank", ("rank", {"--timeout": "2 minutes"})),
        ('--timeout="2 minutes" rank', ("rank", {"--timeout": "2 minutes"})),
    ],
)
def test_an_expression_follows_its_options(line, expected):
    assert _leading_options(line) == expected


def test_an_option_that_the_line_magic_does_not_have_is_refused_with_its_name():
    with raises(InvalidRequest, given="--rank"):
        _leading_options("--rank 3 X.sum()")


def test_the_values_of_an_expression_get_the_name_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(cells_client, "run", lambda *_, **__: CellResult([0], {0: CellOutcome("ok")}))
    shell = SimpleNamespace(user_ns={})

    assert CellMagics(shell).mpi("--out found None") == [None]
    assert shell.user_ns == {"found": [None]}
    with pytest.raises(UsageError, match=r"^--out 1a is not valid\. Choose a name for a variable"):
        CellMagics(shell).mpi("--out 1a None")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%mpi my", ["myvalue"]),
        ("values = %mpi my", ["myvalue"]),
        ("%%mpi\nmy", ["myvalue"]),
        ("%%mpi X --check\nmy", ["myvalue"]),
        ("%%mpi --shared X\nmy", ["value1"]),
        ("%mpi --shared my", ["value1"]),
        ("%mpi 1\nmy", []),
        ("%%mpi_profile\nmy", []),
        ("1\n%mpi my", ["myvalue"]),
        ("%%mpi my", []),
        ("%%mpi --str", ["--stream"]),
        ("1\n%mpi --str", ["--stream"]),
    ],
)
def test_names_of_rank_0_are_completed_where_they_are_used(text, expected, monkeypatch):
    names = ["myvalue", "value1"]
    monkeypatch.setattr(cells_client, "complete", lambda *_, shared: [names[shared]])
    monkeypatch.setattr("workbench.cells.magics._client_here", lambda: None)
    last = text.split("\n")[-1]

    found = match(CompletionContext("", text, len(last), text.count("\n"), None))

    assert [each.text for each in found["completions"]] == expected


def test_ranks_are_given_one_by_one_or_as_ranges():
    assert _ranks("5,0-2") == [0, 1, 2, 5]
    for wrong in ("", "a", "3-1", "-1", "1,,2"):
        with raises(InvalidRequest, option="ranks", given=wrong):
            _ranks(wrong)


def test_a_cell_with_magics_is_fine_and_a_syntax_error_is_told_with_its_line():
    check_syntax("%time 1\n!ls\nx = 1")
    with raises(InvalidRequest, given=2):
        check_syntax("a = 1\nfor x in\n")


def test_a_value_that_cannot_be_broadcast_soon_goes_with_the_cell_unless_it_is_too_large(monkeypatch):
    limits = []

    def broadcast(client, value, timeout):
        limits.append(timeout)
        raise RankLost("rank 3 is gone")

    monkeypatch.setattr(cells_client, "_BROADCAST", 7.0)
    monkeypatch.setattr(cells_client.broadcast, "broadcast", broadcast)

    (kind, parcel), *_ = cells_client.transfer(None, "table", np.ones(200_000), []).items()
    assert (kind, len(parcel) > 1_600_000) == ("parcel", True)
    with raises(RankLost, message="rank 3 is gone"):
        cells_client.transfer(None, "table", bytes(65 << 20), [])
    assert limits == [7.0, None]


def test_output_is_grouped_by_what_ranks_say():
    outputs = {
        0: [CellOutput("stdout", "a"), CellOutput("stdout", "b\n")],
        1: [CellOutput("stdout", "ab\n")],
        2: [CellOutput("stdout", "ab"), CellOutput("result", data={"text/plain": "7"})],
    }

    assert [with_label(piece) for piece in grouped(outputs)] == ["ranks 0-1: ab\n", "rank 2:\nab\n7\n"]


def test_output_as_it_comes_is_tagged_line_by_line():
    tagged = LinePrefixer()

    assert tagged.lines(2, CellOutput("stdout", "one\ntw")) == "[2] one\n"
    assert tagged.lines(0, CellOutput("stdout", "\n")) == "[0] \n"
    assert tagged.lines(2, CellOutput("stdout", "o\n")) == "[2] two\n"
    assert tagged.lines(1, CellOutput("stdout", "no end")) == ""
    assert tagged.rest(2) == ""
    assert tagged.rest(1) == "[1] no end\n"
    assert tagged.rest() == ""
    assert label([3]) == "rank 3"


def result(**done):
    """Return how a cell went, by rank."""
    ranks = {int(name[1:]): each for name, each in done.items()}
    return CellResult(sorted(ranks), ranks)


def test_of_failures_the_lowest_rank_shows_its_traceback_and_the_others_a_line():
    failed = result(
        r0=CellOutcome("ended", "rank 1 raised KeyError: 1"),
        r1=CellOutcome("error", "KeyError: 1", "Traceback: 1"),
        r2=CellOutcome("error", "OSError: 2", "Traceback: 2"),
        r3=CellOutcome("error", "KeyError: 1", "Traceback: 3"),
    )

    assert failures(failed) == [
        "ranks 1, 3 raised:\nTraceback: 1",
        "rank 2 raised OSError: 2",
        "rank 0: the cell was ended, because rank 1 raised KeyError: 1",
    ]
    with raises(CollectiveFailed, ranks=(1,)):
        failed.check()


CRASH = " with signal 11 (SIGSEGV) at fit.py:15 in solve"


def test_a_lost_rank_comes_before_what_follows_from_its_loss():
    lost = result(r0=CellOutcome("error", "Exception: MPI_ERR_PROC_FAILED", "Traceback"))
    lost.ranks, lost.lost = [0, 1], {1: ""}

    assert failures(lost) == ["rank 0 raised Exception: MPI_ERR_PROC_FAILED"]
    with pytest.raises(RankLost):
        lost.check()
    for others, words in (
        ({1: CRASH}, "rank 1 was lost in this cell with signal 11 .SIGSEGV."),
        ({1: "", 2: CRASH}, "ranks 1-2 were lost in this cell: rank 2 with signal 11 .SIGSEGV."),
    ):
        lost.ranks, lost.lost = [0, *others], others
        with pytest.raises(RankLost, match=words):
            lost.check()


def test_a_rank_that_does_not_come_out_and_a_time_that_is_over_are_named():
    silent = result(r0=CellOutcome("interrupted", "it was interrupted"))
    silent.ranks = [0, 1]
    with raises(CollectiveFailed, ranks=(1,)):
        silent.check()
    late = result(r0=CellOutcome("interrupted", "its time limit of 2 s has passed"))
    late.timed_out = True
    with pytest.raises(CollectiveTimeout):
        late.check()


def test_a_client_that_has_missed_an_engine_is_replaced(monkeypatch):
    made = []

    def wait_for_engines(number, **_):
        if len(made) == 1:
            raise TimeoutError

    def connect(connection, kind):
        made.append(
            SimpleNamespace(
                wait_for_engines=wait_for_engines,
                close=lambda: made.append("closed"),
                session=SimpleNamespace(metadata={}),
            )
        )
        return made[-1]

    monkeypatch.setattr(engine_client, "connect", connect)
    client = engine_client.rank_client({}, 2, lambda: None, "notebook")

    assert made[1] == "closed"
    assert made[2] is client
