"""What passes between a browser and the server behind a page, and what does not."""

from __future__ import annotations

import dataclasses
import json

import pytest
from server.running import BASE, TOKEN
from tornado.simple_httpclient import HTTPStreamClosedError

from workbench.deploy.folder import RECORD, ClusterFolder
from workbench.host.processes import ProcessId

SECRETS = {
    "Authorization": f"token {TOKEN}",
    "X-XSRFToken": "secret-xsrf",
    "Referer": f"http://127.0.0.1/?token={TOKEN}",
    "Proxy-Authorization": "secret-proxy",
    "Connection": "keep-alive, X-Hop",
    "X-Hop": "secret-hop",
    "X-Forwarded-User": "secret-user",
}
GONE = dataclasses.replace(ProcessId.here(), started=0.0)
KINDS = ["dashboard", "dask"]


def page(kind, rest, name="with-dask"):
    return f"{BASE}workbench/{kind}/{name}/{rest}"


def passed(told):
    """Return what an upstream has received, as one text in lower case."""
    return json.dumps(told).lower()


@pytest.mark.parametrize("kind", KINDS)
async def test_no_cookie_login_or_token_reaches_what_is_behind(server, dask_cluster, kind):
    headers = {**SECRETS, "Cookie": f"{server.cookie}; mine=secret-cookie", "Accept": "text/x-wanted"}
    asked = page(kind, f"asked?a=1&%74oken=secret-too&token={TOKEN}&b=token")
    answer = await server.get((await server.get(asked, headers=headers)).headers["Location"], headers=headers)
    async with server.join(asked.replace("asked", "ws"), headers=headers) as socket:
        message = await socket.read_message()

    for told in (json.loads(answer.body), json.loads(message)):
        assert "secret" not in passed(told)
        assert TOKEN not in passed(told)
        assert not {"cookie", "authorization", "origin", "referer"} & {name.lower() for name, _ in told["headers"]}
        assert told["uri"].endswith("?a=1&b=token")
        assert ["Accept", "text/x-wanted"] in told["headers"]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_behind_sets_no_cookie_and_opens_nothing_to_other_origins(server, dask_cluster, kind):
    answer = await server.get(page(kind, "asked"))

    assert "upstream" not in passed(list(answer.headers.get_all()))
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert answer.headers["Content-Type"].startswith("application/json")


async def test_the_dashboard_is_asked_below_its_prefix_and_dask_at_its_root(server, dask_cluster):
    for kind, expected in (("dashboard", page("dashboard", "a%2Fb%20c?x=%26")), ("dask", "/a%2Fb%20c?x=%26")):
        answer = await server.get(page(kind, "a%2Fb%20c?x=%26"))

        assert json.loads(answer.body)["uri"] == expected


@pytest.mark.parametrize("kind", KINDS)
async def test_a_redirect_stays_with_its_pages(server, dask_cluster, kind):
    assert (await server.get(page(kind, "moves"))).headers["Location"] == page(kind, "asked")
    assert (await server.get(page(kind, "moves?to=asked"))).headers["Location"] == "asked"
    for outside in ("//elsewhere.example/", "http://elsewhere.example/", "%5C%5Celsewhere.example/"):
        answer = await server.get(page(kind, f"moves?to={outside}"))
        assert "elsewhere" not in answer.headers.get("Location", "")


@pytest.mark.parametrize("kind", KINDS)
async def test_without_its_slash_a_page_is_found_all_the_same(server, dask_cluster, kind):
    answer = await server.get(page(kind, "").rstrip("/") + f"?view=cores&token={TOKEN}")

    assert (answer.code, answer.headers["Location"]) == (302, page(kind, "?view=cores"))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_large_answer_arrives_whole(server, dask_cluster, kind):
    answer = await server.get(page(kind, "large"))

    assert answer.body == b"".join(bytes([number]) * 65536 for number in range(64))


@pytest.mark.parametrize("kind", KINDS)
async def test_headers_can_be_had_alone(server, dask_cluster, kind):
    answer = await server.get(page(kind, "asked"), method="HEAD")

    assert (answer.code, answer.body) == (200, b"")
    assert int(answer.headers["Content-Length"]) > 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_websocket_passes_text_and_bytes_both_ways_and_tells_its_end(server, dask_cluster, kind):
    async with server.join(page(kind, "ws"), subprotocols=["bokeh", "its-session"]) as socket:
        told = json.loads(await socket.read_message())

        assert socket.selected_subprotocol == "bokeh"
        assert ["Sec-Websocket-Protocol", "bokeh,its-session"] in told["headers"]
        for message in ("text", b"\0bytes\xff", "x" * 1_000_000):
            await socket.write_message(message, binary=isinstance(message, bytes))
            assert await socket.read_message() == message
        await socket.write_message("leave")
        assert await socket.read_message() is None


@pytest.mark.parametrize("kind", KINDS)
async def test_an_open_page_is_no_activity_of_the_user(server, dask_cluster, kind):
    async def active():
        return json.loads((await server.get(f"{BASE}api/status")).body)["last_activity"]

    before = await active()
    assert (await server.get(page(kind, "asked"))).code == 200
    async with server.join(page(kind, "ws")) as socket:
        await socket.read_message()
        await socket.write_message("text")
        assert await socket.read_message() == "text"

    assert await active() == before


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_that_breaks_off_is_not_taken_for_whole(server, dask_cluster, kind):
    with pytest.raises(HTTPStreamClosedError):
        await server.get(page(kind, "breaks"))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_failure_behind_a_page_is_told_without_its_words(server, dask_cluster, kind):
    answer = await server.get(page(kind, "fails"))

    assert (answer.code, b"secret" in answer.body) == (502, False)
    assert b"does not answer (HTTP 500: Internal Server Error). Reload" in answer.body


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_not_found_behind_a_page_is_not_found(server, dask_cluster, kind):
    assert (await server.get(page(kind, "nothing"))).code == 404
    assert await server.knock(page(kind, "nothing")) == 502


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nobody", b"cluster &#x27;nobody&#x27; does not exist"),
        ("..", b"name &#x27;..&#x27;"),
        ("%2e%2e%2f%2e%2e", b"Choose 1 to 40 letters"),
        ("127.0.0.1:80", b"Choose 1 to 40 letters"),
        ("%3Cscript%3E", b"name &#x27;&lt;script&gt;&#x27;"),
        ("x" * 99, b"Choose 1 to 40 letters"),
    ],
)
async def test_a_cluster_that_is_not_known_is_not_found(server, kind, name, words):
    answer = await server.get(page(kind, "", name))

    assert answer.code == 404
    assert words in answer.body


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cluster_that_has_ended_is_not_found_and_its_logs_are_named(server, cluster, kind):
    stopped, killed = cluster("stopped"), cluster("killed", process=GONE)
    ClusterFolder.of(stopped).remove()

    for record in (stopped, killed):
        answer = await server.get(page(kind, "", record.name))
        assert answer.code == 404
        assert b"has ended" in answer.body
        assert str(ClusterFolder.of(record).logs).encode() in answer.body


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cluster_that_has_no_head_yet_is_a_bad_gateway_in_words(server, cluster, kind):
    cluster("odd", address=None, state="starting")

    answer = await server.get(page(kind, "", "odd"))
    assert answer.code == 502
    assert b"has no head yet, because its state is starting. Reload this page" in answer.body
    assert await server.knock(page(kind, "ws", "odd")) == 502


async def test_a_dask_dashboard_that_does_not_answer_is_a_bad_gateway_in_words(server, cluster):
    cluster("mute-dask")

    answer = await server.get(page("dask", "", "mute-dask"))
    assert answer.code == 502
    words = b"Dask&#x27;s dashboard in the head of cluster &#x27;mute-dask&#x27; does not answer"
    assert words in answer.body
    assert (await server.get(page("dashboard", "", "mute-dask"))).code == 200


@pytest.mark.parametrize("kind", KINDS)
async def test_a_record_that_cannot_be_used_is_told_with_the_remedy(server, cluster, kind):
    record = cluster("damaged")
    (ClusterFolder.of(record).path / RECORD).write_text('{"schema": 99}')

    answer = await server.get(page(kind, "", "damaged"))
    assert answer.code == 502
    assert b"schema 99, and this version reads" in answer.body


async def test_a_head_that_does_not_answer_a_dashboard_is_told_in_its_words(server, cluster):
    cluster("broken-one")

    answer = await server.get(page("dashboard", "", "broken-one"))
    assert answer.code == 502
    assert b"no such thing: the first word" in answer.body
