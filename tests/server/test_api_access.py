"""Who may use the API: only who is logged in to Jupyter, from its own pages, as its authorizer says."""

from __future__ import annotations

import json
import re

import pytest
from server.running import API, TOKEN

METHODS = {
    "clusters": {"GET", "POST"},
    "starts/X": {"DELETE"},
    "clusters/X": {"DELETE"},
    "clusters/X/scale": {"POST"},
    "clusters/X/restart": {"POST"},
    "clusters/X/error": {"DELETE"},
    "clusters/X/logs": {"GET"},
    "clusters/X/logs/X": {"GET"},
    "clusters/X/logs/X/download": {"GET"},
    "form": {"GET"},
    "check": {"POST"},
    "kernels": {"GET"},
}
ALL = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
BODY = {"POST": "{}", "PUT": "{}", "PATCH": "{}"}


@pytest.fixture
def paths(started):
    """Return the path of every route of the API that is no websocket."""
    routes = [route for route in started.routes if "/workbench/api/" in route]
    paths = [re.sub(r"\(\[\^/\]\+\)", "X", route).rstrip("$").partition("/workbench/api/")[2] for route in routes]
    assert sorted(paths) == sorted([*METHODS, "events"])
    return [path for path in paths if path != "events"]


@pytest.mark.parametrize("headers", [{"A": "b"}, {"Authorization": "token wrong"}, {"Cookie": "a=b"}])
async def test_no_route_answers_who_is_not_logged_in(started, paths, headers):
    for path in paths:
        for method in ALL:
            answer = await started.get(f"{API}{path}", method=method, headers=headers, body=BODY.get(method))

            assert answer.code == 403 if method in METHODS[path] else answer.code in {403, 405}, (method, path)


async def test_no_page_elsewhere_changes_anything_by_the_cookie_alone(server, paths):
    for path in paths:
        for method in METHODS[path] - {"GET"}:
            answer = await server.get(f"{API}{path}", method=method, body=BODY.get(method))

            assert answer.code == 403, (method, path)
            assert "_xsrf" in json.loads(answer.body)["message"]


async def test_a_page_of_the_server_is_heard_by_cookie_and_xsrf_token(server):
    token = re.search(r"_xsrf=([^;]+)", server.cookie)[1]
    headers = server.headers(**{"X-XSRFToken": token, "Referer": f"http://{server.host}/lab"})

    assert await server.ask("starts/none", "DELETE", **headers) == (404, {"message": ANY_START, "log": None})


ANY_START = "start 'none' does not exist: the start was dismissed, or is of another server."


async def test_the_authorizer_is_asked_about_every_method_of_every_route(server, paths):
    forbidden = {"Authorization": f"token {TOKEN}", "Forbid": "read write execute"}
    for path in paths:
        for method in METHODS[path]:
            code, told = await server.ask(path, method, {} if method == "POST" else None, **forbidden)

            assert code == 403, (method, path)
            assert "not authorized" in told["message"]


async def test_who_may_only_read_starts_nothing(server):
    told = {"Authorization": f"token {TOKEN}", "Forbid": "write execute"}

    assert (await server.ask("clusters", **told))[0] == 200
    assert (await server.ask("clusters", "POST", {"ranks": 2}, **told))[0] == 403
    assert (await server.ask("clusters/X", "DELETE", **told))[0] == 403


async def test_the_websocket_is_for_who_is_logged_in_and_may_read_and_for_pages_of_the_server(server):
    path, token = f"{API}events", {"Authorization": f"token {TOKEN}"}

    assert await server.knock(path, headers={}) == 403
    assert await server.knock(path, headers={**token, "Forbid": "read"}) == 403
    assert await server.knock(path, headers=server.headers(Origin="http://elsewhere.example")) == 403
    assert await server.knock(path, headers=server.headers(Origin=f"http://{server.host}")) == 101
