"""Only the owner of a cluster's key can connect, in either direction."""

from __future__ import annotations

import datetime as dt
import os
import socket
import ssl
import stat
import threading

import pytest
from cryptography import x509
from support.raised import raises

from workbench.comm import certificates

GREETING = b"welcome"


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ours")
    certificates.make(folder, "ours")
    return folder


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    # the same name: it proves nothing
    certificates.make(folder, "ours")
    return folder


def server(folder, role="scheduler"):
    return certificates.security(folder).get_listen_args(role)["ssl_context"]


def client(folder, role="client"):
    return certificates.security(folder).get_connection_args(role)["ssl_context"]


def anonymous(folder):
    """Return the side of a user who knows the certificate, which is public, and has no key."""
    context = ssl.create_default_context(cafile=folder / certificates.CERTIFICATE)
    context.check_hostname = False
    return context


def greeted(server_context, client_context):
    """Connect two sides, and return what the client received from the server: nothing, if one refused the other."""
    here, there = socket.socketpair()

    def serve():
        try:
            with server_context.wrap_socket(there, server_side=True) as connection:
                connection.sendall(GREETING)
        except OSError:
            there.close()

    thread = threading.Thread(target=serve)
    with here, there:
        here.settimeout(10)
        there.settimeout(10)
        thread.start()
        try:
            with client_context.wrap_socket(here) as connection:
                return connection.recv(len(GREETING))
        except (ssl.SSLError, ConnectionError):
            return b""
        finally:
            here.close()
            thread.join()


@pytest.mark.parametrize(
    ("listens", "connects"), [("scheduler", "client"), ("scheduler", "worker"), ("worker", "client")]
)
def test_all_parts_of_a_cluster_talk_to_each_other(ours, listens, connects):
    assert greeted(server(ours, listens), client(ours, connects)) == GREETING


def test_who_shows_no_certificate_is_refused(ours):
    assert greeted(server(ours), anonymous(ours)) == b""


def test_who_shows_the_certificate_of_another_cluster_is_refused(ours, theirs):
    stranger = client(theirs)
    stranger.load_verify_locations(ours / certificates.CERTIFICATE)
    assert greeted(server(ours), stranger) == b""


def test_a_server_of_another_cluster_is_refused_by_our_client(ours, theirs):
    welcoming = server(theirs)
    welcoming.load_verify_locations(ours / certificates.CERTIFICATE)
    assert greeted(welcoming, client(ours)) == b""


def test_a_certificate_without_its_key_is_of_no_use(ours, theirs):
    with pytest.raises(ssl.SSLError):
        client(ours).load_cert_chain(ours / certificates.CERTIFICATE, theirs / certificates.KEY)


def test_nothing_is_said_without_tls(ours):
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(10)
        there.settimeout(10)
        here.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with raises(ssl.SSLError, reason="HTTP_REQUEST"):
            server(ours).wrap_socket(there, server_side=True)


def test_encryption_is_required_of_every_connection(ours):
    security = certificates.security(ours)
    for role in ("client", "worker", "scheduler"):
        assert security.get_connection_args(role)["require_encryption"] is True
        assert security.get_connection_args(role)["ssl_context"].verify_mode is ssl.CERT_REQUIRED


def test_certificate_and_key_are_the_users_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        certificates.make(tmp_path, "a")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {certificates.CERTIFICATE: 0o600, certificates.KEY: 0o600}


def test_the_key_is_not_in_the_certificate(ours):
    assert b"PRIVATE" in (ours / certificates.KEY).read_bytes()
    assert b"PRIVATE" not in (ours / certificates.CERTIFICATE).read_bytes()


def test_a_key_is_never_written_over(ours):
    before = (ours / certificates.KEY).read_bytes()
    with pytest.raises(FileExistsError):
        certificates.make(ours, "ours")
    assert (ours / certificates.KEY).read_bytes() == before


def test_a_key_is_never_written_through_a_link(tmp_path):
    target = tmp_path / "target"
    (tmp_path / certificates.KEY).symlink_to(target)
    with pytest.raises(FileExistsError):
        certificates.make(tmp_path, "a")
    assert not target.exists()


def test_a_node_whose_clock_is_slow_takes_the_certificate(ours):
    certificate = x509.load_pem_x509_certificate((ours / certificates.CERTIFICATE).read_bytes())
    now = dt.datetime.now(dt.UTC)
    assert certificate.not_valid_before_utc < now - dt.timedelta(hours=1)
    assert certificate.not_valid_after_utc > now + dt.timedelta(days=300)


def test_the_longest_name_fits_into_a_certificate(tmp_path):
    certificates.make(tmp_path, "x" * 200)
    certificate = x509.load_pem_x509_certificate((tmp_path / certificates.CERTIFICATE).read_bytes())
    assert "workbench-xxx" in certificate.subject.rfc4514_string()


def test_removing_takes_both_files_and_can_be_repeated(tmp_path):
    certificates.make(tmp_path, "a")
    certificates.remove(tmp_path)
    certificates.remove(tmp_path)
    assert list(tmp_path.iterdir()) == []
