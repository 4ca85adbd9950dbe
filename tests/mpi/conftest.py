"""Worlds whose ranks run checks; all tests of one world come one after the other."""

from __future__ import annotations

import pytest
from support.world import World, template

from workbench.comm import certificates


@pytest.fixture(scope="session", autouse=True)
def _template():
    with template():
        yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    certificates.make(folder, "tests")
    return folder


# Forbids MPI to copy from process to process at one stroke, as it cannot everywhere.
PIECEWISE = {"OMPI_MCA_smsc": "^cma,knem,xpmem", "MPIR_CVAR_CH4_CMA_ENABLE": "0"}


@pytest.fixture(scope="session", params=["2", "4-tls"])
def world(request, folder):
    ranks, *kind = request.param.split("-")
    world = World(int(ranks), folder if "tls" in kind else None, PIECEWISE if "piecewise" in kind else None)
    yield world
    world.close()
