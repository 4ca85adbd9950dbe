"""What is in a report, as far as no browser is needed to see it."""

from __future__ import annotations

import asyncio
import dataclasses
import re

import numpy as np
import pytest

from benchmarks.simulated import Simulated
from workbench.errors import InvalidRequest
from workbench.lab.dashboard.report import report


class Told(Simulated):
    """A simulated cluster for which time stands still, with some other values."""

    def __init__(self, ranks, nodes, *, history=30, **fields):
        super().__init__(ranks, nodes, history=history, clock=lambda: 1.8e9)
        self.fields = fields

    async def ask(self, since):
        return dataclasses.replace(await super().ask(since), **self.fields)


def html(source):
    return asyncio.run(report(source, "simulated"))


@pytest.fixture(scope="module")
def told():
    """Return the report of many ranks and a long time; one rank has sent nothing, and a node is named like a script."""
    many = Told(512, 32, history=600)
    layout = many.layout
    rank = asyncio.run(many.ask(0)).rank.copy()
    rank[:, 1] = np.nan
    nodes = ("</script><script>alert(1)</script>", *layout.nodes[1:])
    return html(Told(512, 32, history=600, layout=dataclasses.replace(layout, nodes=nodes), rank=rank))


def test_a_report_has_every_page_in_both_themes_and_names_no_other_host(told):
    for page in ("overview", "communication", "cores", "training", "waiting"):
        assert f'<section id="{page}">' in told
    assert [told.count(f'id="items-{theme}"') for theme in ("light", "dark")] == [1, 1]
    assert "512 ranks on 32 nodes, report of " in told
    pages = told[told.rindex("<main>") :]
    assert "ImportedStyleSheet" not in pages
    assert re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=", pages) == []


def test_a_report_of_many_ranks_and_a_long_time_stays_small(told):
    assert len(told) < 5e6


def test_names_that_others_have_given_end_no_script(told):
    assert "alert(1)" in told
    assert "<script>alert" not in told


@pytest.mark.parametrize("some", [True, False])
def test_a_report_of_ranks_that_have_told_nothing_is_refused_in_words(some):
    told = asyncio.run(Told(2, 1).ask(0))
    nothing = np.full_like(told.rank, np.nan)
    fields = {"rank": nothing} if some else {"rank": nothing[:0], "times": told.times[:0]}

    with pytest.raises(InvalidRequest):
        html(Told(2, 1, **fields))
