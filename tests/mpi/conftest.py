"""Worlds whose ranks run checks; all tests of one world come one after the other."""

from __future__ import annotations

import pytest
from support.world import World

from workbench import certificates


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    certificates.make(folder, "tests")
    return folder


@pytest.fixture(scope="session", params=[(2, False), (4, True)], ids=["2", "4-tls"])
def world(request, folder):
    ranks, encrypted = request.param
    world = World(ranks, folder if encrypted else None)
    yield world
    world.close()
