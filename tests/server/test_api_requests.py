"""Invalid requests: each is answered with a message."""

from __future__ import annotations

import json

import pytest
from server.running import API, BASE, TOKEN

from workbench.deploy.folder import RECORD, ClusterFolder


@pytest.mark.parametrize("body", ["", "{", "[]", "3", '"text"', "null", "[" * 100_000], ids=range(7))
@pytest.mark.parametrize("path", ["clusters", "check", "clusters/any/scale"])
async def test_a_body_that_is_no_object_is_a_bad_request(server, path, body):
    code, told = await server.ask(path, "POST", body)

    assert code == 400
    assert "Send a JSON object" in told["message"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": 2}, "did you mean 'ranks'"),
        ({"ranks": "--all"}, "ranks '--all'"),
        ({"ranks": "-h"}, "ranks '-h'"),
        ({"ranks": True}, "ranks True"),
        ({"extra": "--qos=high"}, "a list of texts"),
        ({"name": {"a": 1}}, "a text on one line"),
        ({"queue": "a\0b"}, "a text on one line"),
        ({"account": "a\nb"}, "a text on one line"),
        ({"extra": ["\ud800"]}, "each on one line"),
        ({"dry_run": True}, "no such option"),
        ({"directory": "../elsewhere"}, "Choose an existing folder in"),
        ({"directory": "/"}, "Choose an existing folder in"),
        ({"directory": "a" * 300}, "Choose an existing folder in"),
        ({"directory": 3}, "the path of a folder"),
        ({"kernel": "none"}, "kernel 'none' is not valid. Allowed: python3"),
        ({"kernel": ["python3"]}, "kernel ['python3']"),
    ],
)
async def test_options_that_cannot_be_start_nothing_and_are_told_by_the_check(server, options, words):
    code, told = await server.ask("clusters", "POST", options)
    checked, found = await server.ask("check", "POST", options)

    assert (code, checked) == (400, 200)
    assert words in told["message"]
    assert list(found["errors"]) == list(options)
    assert words in found["errors"][next(iter(options))]
    assert (await server.ask("clusters"))[1]["starts"] == []


async def test_a_value_too_long_for_a_command_line_is_told_by_the_check(server):
    options = {"ranks": 2, "queue": "a" * 200_000}
    code, told = await server.ask("clusters", "POST", options)
    checked, found = await server.ask("check", "POST", options)

    assert (code, checked) == (502, 200)
    assert found == {"errors": {"": told["message"]}, "script": None}
    assert "Argument list too long" in told["message"]


@pytest.mark.parametrize("ranks", [0, -1, "4", 2.5, True, None])
async def test_a_number_of_ranks_to_scale_to_is_a_whole_number(server, cluster, ranks):
    cluster("a")

    code, told = await server.ask("clusters/a/scale", "POST", {"ranks": ranks})

    assert (code, told["log"]) == (400, None)
    assert "a whole number from 1" in told["message"]


@pytest.mark.parametrize("name", ["none", "..", "..%2f..", "%2e%2e%2fclusters", "a%00b", "-x", "x" * 50, "%ff"])
async def test_unknown_names_are_not_found(server, name):
    for path, method in (
        (f"clusters/{name}", "DELETE"),
        (f"clusters/{name}/scale", "POST"),
        (f"clusters/{name}/restart", "POST"),
        (f"clusters/{name}/error", "DELETE"),
        (f"clusters/{name}/logs", "GET"),
        (f"clusters/{name}/logs/head", "GET"),
        (f"clusters/{name}/logs/head/download", "GET"),
        (f"clusters/{name}/script", "GET"),
        (f"starts/{name}", "DELETE"),
    ):
        answer = await server.get(
            f"{API}{path}",
            method=method,
            headers={"Authorization": f"token {TOKEN}"},
            body='{"ranks": 2}' if method == "POST" else None,
        )

        # what is no UTF-8 is refused before it is a name
        assert answer.code in ({400} if name == "%ff" else {404}), (method, path)
        assert b"Traceback" not in answer.body


async def test_a_record_that_cannot_be_read_is_told_and_its_cluster_cannot_be_changed(server, cluster):
    record = cluster("damaged")
    (ClusterFolder.of(record).path / RECORD).write_text("{")

    _, told = await server.ask("clusters")
    code, refused = await server.ask("clusters/damaged", "DELETE")

    errors = {its["name"]: its["error"] for its in told["broken"]}
    assert "cannot be read" in errors["damaged"]
    assert code == 502
    assert "cannot be read" in refused["message"]


@pytest.mark.parametrize(
    "message", ["{", "[]", '{"visible": 1}', '{"visible": [1]}', "3", b"\xff", "[" * 100_000], ids=range(7)
)
async def test_a_browser_that_talks_nonsense_is_told_so(server, message):
    async with server.join(f"{API}events") as browser:
        await browser.read_message()
        await browser.write_message(message, binary=isinstance(message, bytes))

        while await browser.read_message() is not None:
            pass
        assert browser.close_code == 1003


async def test_a_log_is_told_as_a_page_can_show_it(server, cluster):
    (ClusterFolder.of(cluster("forged")).logs / "head.log").write_bytes(b"\x1b[2J\x1b[31mx\r")

    assert (await server.ask("clusters/forged/logs/head"))[1]["text"] == "\\x1b[2J\x1b[31mx\r"


async def test_what_nobody_has_foreseen_is_logged_and_shows_nobody_a_trace(server, cluster):
    logs = ClusterFolder.of(cluster("odd")).logs
    logs.rmdir()
    logs.write_text("no folder")

    code, told = await server.ask("clusters/odd/logs")
    logs.unlink()

    assert code == 500
    assert told == {
        "message": "an unexpected error occurred. See the log of the server.",
        "log": None,
    }


async def test_a_page_that_asks_again_and_again_is_no_activity_of_the_user(server, cluster):
    (ClusterFolder.of(cluster("followed")).logs / "head.log").write_text("one")

    async def active():
        return json.loads((await server.get(f"{BASE}api/status")).body)["last_activity"]

    before = await active()

    for path in ("clusters", "clusters/followed/logs", "clusters/followed/logs/head?from=0"):
        assert (await server.ask(path))[0] == 200
    assert await active() == before
    await server.ask("clusters/followed/scale", "POST", {"ranks": 0})
    assert await active() > before


async def test_the_logs_of_an_ended_cluster_whose_name_was_given_again_are_asked_for_by_its_id(server, cluster):
    first = cluster("again")
    (ClusterFolder.of(first).logs / "head.log").write_text("the first")
    ClusterFolder.of(first).remove()
    (ClusterFolder.of(cluster("again")).logs / "head.log").write_text("the second")

    told = [await server.ask(f"clusters/again/logs/head{query}") for query in (f"?id={first.id}", "")]

    assert [its["text"] for _, its in told] == ["the first", "the second"]
    assert (await server.ask(f"clusters/again/logs?id={first.id}"))[1] == {"files": [{"name": "head", "size": 9}]}
    assert (await server.ask("clusters/again/logs?id=../.."))[0] == 404


@pytest.mark.parametrize(
    ("method", "path"), [("DELETE", ""), ("POST", "/scale"), ("POST", "/restart"), ("DELETE", "/error")]
)
async def test_what_was_asked_of_an_ended_cluster_is_not_done_to_the_next_one_of_its_name(
    server, cluster, method, path
):
    first = cluster("followed")
    ClusterFolder.of(first).remove()
    second = cluster("followed")
    body = {"ranks": 2} if path == "/scale" else None

    code, told = await server.ask(f"clusters/followed{path}?id={first.id}", method, body)

    assert (code, told["message"]) == (
        404,
        "the cluster 'followed' has ended, and another cluster now has its name.",
    )
    assert (await server.ask(f"clusters/followed/error?id={second.id}", "DELETE"))[0] == 204
