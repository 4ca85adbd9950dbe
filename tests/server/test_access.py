"""Who sees the pages of clusters: only who is logged in to Jupyter, from its own pages, as its authorizer says."""

from __future__ import annotations

import re

import pytest
from server.running import BASE, TOKEN

from workbench.lab.server.extension import may_frame

PAGES = [
    f"{BASE}workbench/{kind}/guarded{rest}" for kind in ("dashboard", "dask") for rest in ("/", "/asked", "/ws", "")
]


@pytest.fixture(autouse=True)
def guarded(cluster):
    return cluster("guarded")


def test_the_pages_here_are_all_routes_of_pages_that_the_extension_has(started):
    pages = [route for route in started.routes if "/workbench/api/" not in route]

    assert pages
    for route in pages:
        assert any(re.fullmatch(route.rstrip("$"), page) for page in PAGES)


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "token wrong"}, {"Cookie": "a=b"}], ids=["none", "token", "cookie"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_no_route_answers_who_is_not_logged_in(server, guarded, method, headers):
    for path in PAGES:
        for page in (path, f"{path}?token=wrong"):
            answer = await server.get(page, method=method, headers=headers)

            assert answer.code in {302, 403, 405}
            if answer.code == 302:
                assert answer.headers["Location"].startswith(f"{BASE}login?next=")
            assert b"guarded" not in (answer.body or b"")


async def test_no_websocket_is_opened_for_who_is_not_logged_in(server, guarded):
    for path in PAGES:
        assert await server.knock(path, headers={}) == 302


async def test_who_is_logged_in_by_cookie_or_token_gets_the_page(server):
    path = f"{BASE}workbench/dashboard/guarded/asked"

    assert (await server.get(path)).code == 200
    assert (await server.get(path, headers={"Authorization": f"token {TOKEN}"})).code == 200


async def test_the_token_of_jupyter_does_not_stay_in_the_address_of_a_page(server):
    path = f"{BASE}workbench/dashboard/guarded/asked"

    answer = await server.get(f"{path}?view=cores&token={TOKEN}", headers={})

    assert (answer.code, answer.headers["Location"]) == (302, f"{path}?view=cores")
    cookie = "; ".join(its.partition(";")[0] for its in answer.headers.get_list("Set-Cookie"))
    assert (await server.get(answer.headers["Location"], headers={"Cookie": cookie})).code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_nothing_can_be_sent_but_by_websockets(server, method):
    path = f"{BASE}workbench/dashboard/guarded/asked"

    assert (await server.get(path, method=method, body="x")).code == 403  # no XSRF token
    told = {"Authorization": f"token {TOKEN}"}
    assert (await server.get(path, method=method, body="x", headers=told)).code == 405


async def test_a_page_of_another_origin_opens_no_websocket(server):
    path = f"{BASE}workbench/dashboard/guarded/ws"

    assert await server.knock(path, headers=server.headers(Origin="http://elsewhere.example")) == 403
    assert await server.knock(path, headers=server.headers(Origin=f"http://{server.host}")) == 101


async def test_the_authorizer_is_asked_to_read_pages_and_to_execute_by_websockets(server, cluster):
    cluster("no-read-a"), cluster("no-execute-a")

    for kind in ("dashboard", "dask"):
        assert (await server.get(f"{BASE}workbench/{kind}/no-read-a/asked")).code == 403
        assert await server.knock(f"{BASE}workbench/{kind}/no-execute-a/ws") == 403
        # who may only read gets no websocket by another method, either
        assert await server.knock(f"{BASE}workbench/{kind}/no-execute-a/ws", method="HEAD") == 405
    assert (await server.get(f"{BASE}workbench/dashboard/no-execute-a/asked")).code == 200


async def test_a_page_may_be_framed_by_jupyter_alone(server):
    answer = await server.get(f"{BASE}workbench/dashboard/guarded/asked")

    assert "frame-ancestors 'self'" in answer.headers["Content-Security-Policy"]


def test_jupyterlab_knows_from_its_page_whether_dashboards_may_be_framed(started):
    assert started.page_config["workbenchFramed"] is True


@pytest.mark.parametrize(
    ("policy", "may"),
    [
        ("", True),
        ("default-src 'none'", True),
        ("frame-ancestors 'self'; report-uri /csp", True),
        ("frame-ancestors 'none'; report-uri /csp", False),
        ("default-src 'self'; Frame-Ancestors 'NONE'", False),
        ("frame-ancestors", False),
    ],
)
def test_the_policy_of_a_server_tells_whether_its_pages_may_be_framed(policy, may):
    assert may_frame(policy) is may
