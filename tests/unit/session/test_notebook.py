"""How a notebook is identified."""

from __future__ import annotations

from types import SimpleNamespace

import ipykernel.connect

from workbench.session import current


def test_a_notebook_keeps_its_identity_when_its_kernel_restarts(monkeypatch):
    program = current.notebook_id()
    monkeypatch.setattr(current, "_shell", lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setattr(ipykernel.connect, "get_connection_file", lambda: "/run/kernel-1.json")
    first = current.notebook_id()
    monkeypatch.setattr(current, "_PROCESS", "another process")

    assert current.notebook_id() == first
    monkeypatch.setattr(ipykernel.connect, "get_connection_file", lambda: "/run/kernel-2.json")
    assert len({current.notebook_id(), first, program, "another process"}) == 4


def test_a_kernel_without_a_connection_file_is_identified_by_its_process(monkeypatch):
    program = current.notebook_id()
    monkeypatch.setattr(current, "_shell", lambda: SimpleNamespace(kernel=object()))

    assert current.notebook_id() == program
