"""How a notebook is identified."""

from __future__ import annotations

from types import SimpleNamespace

import ipykernel.connect

from workbench.session import notebook


def test_a_notebook_keeps_its_identity_when_its_kernel_restarts(monkeypatch):
    program = notebook.identity()
    monkeypatch.setattr(notebook, "_shell", lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setattr(ipykernel.connect, "get_connection_file", lambda: "/run/kernel-1.json")
    first = notebook.identity()
    monkeypatch.setattr(notebook, "_PROCESS", "another process")

    assert notebook.identity() == first
    monkeypatch.setattr(ipykernel.connect, "get_connection_file", lambda: "/run/kernel-2.json")
    assert len({notebook.identity(), first, program, "another process"}) == 4


def test_a_kernel_without_a_connection_file_is_identified_by_its_process(monkeypatch):
    program = notebook.identity()
    monkeypatch.setattr(notebook, "_shell", lambda: SimpleNamespace(kernel=object()))

    assert notebook.identity() == program
