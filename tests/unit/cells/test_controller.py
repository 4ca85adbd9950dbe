"""What the controller of cells does between registrations, and what it logs."""

from __future__ import annotations

import logging
import threading

from ipyparallel.controller.app import IPController
from ipyparallel.controller.heartmonitor import HeartMonitor

from workbench.cells import controller, protocol
from workbench.cells.controller import Controller, Monitor


def test_engines_are_asked_for_signs_of_life_often_only_while_one_is_to_be_registered(monkeypatch):
    now, awaited, asked = [0.0], [False], []

    def beat(self):
        self.tic = now[0]
        asked.append(now[0])

    monkeypatch.setattr(HeartMonitor, "beat", beat)
    monkeypatch.setattr(controller.time, "monotonic", lambda: now[0])
    monitor = Monitor(is_awaited=lambda: awaited[0])
    for now[0] in range(1, 131):
        awaited[0] = now[0] in (70, 71)
        monitor.beat()

    assert asked == [60, 70, 71]


def test_heartbeats_are_not_logged(monkeypatch):
    monkeypatch.setattr(IPController, "init_hub", lambda _: None)
    monkeypatch.setattr(IPController, "engine_url", lambda _, name: name)
    made = []
    monkeypatch.setattr(threading, "Thread", lambda **told: made.append(told["kwargs"]))
    its = Controller()
    its.init_hub()

    assert made[0]["log_level"] == logging.CRITICAL


def test_a_step_of_the_start_of_engines_has_a_shorter_deadline_than_the_request_that_contains_it():
    assert protocol.REGISTER_S < protocol.ANSWER_S
    assert max(protocol.CONTROLLER_S, protocol.ANSWER_S) + protocol.ANSWER_S < protocol.ENGINES_S
