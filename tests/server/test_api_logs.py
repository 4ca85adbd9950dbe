"""Log files that a browser keeps: sent as they are, and whole."""

from __future__ import annotations

import asyncio
import os

import pytest
from server.running import API, TOKEN

from workbench.deploy.folder import ClusterFolder

LOGIN = {"Authorization": f"token {TOKEN}"}
# More than waits in the buffers of a connection.
HUGE = 256 << 20


@pytest.fixture
def log(cluster):
    """Return the log of the head of cluster ``a``."""
    return ClusterFolder.of(cluster("a")).logs / "head.log"


async def test_a_log_is_sent_as_it_is(server, log):
    content = "\x1b[31m1 %\r2 %\x1b[m ä€🙂\n".encode() * 50_000 + b"\xff\x00"
    log.write_bytes(content)

    answer = await server.get(f"{API}clusters/a/logs/head/download", headers=LOGIN)

    assert (answer.code, answer.body) == (200, content)
    assert answer.headers["Content-Disposition"] == "attachment; filename*=utf-8''a-head.log"
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_an_empty_log_is_sent(server, log):
    log.write_bytes(b"")

    answer = await server.get(f"{API}clusters/a/logs/head/download", headers=LOGIN)

    assert (answer.code, answer.body) == (200, b"")
    assert "a-head.log" in answer.headers["Content-Disposition"]


async def test_the_log_of_an_ended_cluster_is_sent_though_another_one_has_its_name(server, cluster):
    first = cluster("a")
    (ClusterFolder.of(first).logs / "head.log").write_text("the first")
    ClusterFolder.of(first).remove()
    (ClusterFolder.of(cluster("a")).logs / "head.log").write_text("the second")

    answers = [
        await server.get(f"{API}clusters/a/logs/head/download{query}", headers=LOGIN)
        for query in (f"?id={first.id}", "")
    ]

    assert [answer.body for answer in answers] == [b"the first", b"the second"]


async def test_what_is_no_log_is_not_sent(server, log):
    log.write_text("a log")
    log.with_name("secret.log").symlink_to("/etc/hostname")

    for file in ("secret", "..%2fa", "head.log", "none"):
        code, told = await server.ask(f"clusters/a/logs/{file}/download")
        assert code == 404, file
        assert "does not exist in" in told["message"]


async def test_a_log_that_shrinks_while_it_is_sent_is_no_whole_file_to_the_browser(server, log):
    with log.open("wb") as file:
        file.truncate(HUGE)
    reader, writer = await asyncio.open_connection(*server.host.split(":"))
    try:
        path = f"{API}clusters/a/logs/head/download"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {server.host}\r\nAuthorization: token {TOKEN}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        os.truncate(log, 0)
        sent = 0
        while block := await reader.read(1 << 20):
            sent += len(block)
    finally:
        writer.close()
        await writer.wait_closed()

    assert f"Content-Length: {HUGE}".encode() in head
    assert 0 < sent < HUGE
