"""Outside of any world ``mpi://`` is TCP or TLS, and connects to these."""

from __future__ import annotations

import pytest
from support import contract
from support.ends import together

from workbench.comm import certificates


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    certificates.make(folder, "tests")
    return folder


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
async def test_outside_of_a_world(check, encrypted, folder):
    await together(check, folder if encrypted else None)
