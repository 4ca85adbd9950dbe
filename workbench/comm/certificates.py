"""The TLS certificate and key of one cluster.

One self-signed certificate is authority, server and client. A process with the key belongs to the cluster, and
connections of all other processes are rejected in both directions.
"""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed.security import Security

CERTIFICATE = "certificate.pem"
KEY = "key.pem"
_LIFETIME = dt.timedelta(days=365)


def make(folder: Path, name: str) -> None:
    """Write a new certificate with the cluster's name and its key to `folder`, readable only for the user."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    # An elliptic curve, because an RSA key takes longer than all other steps of a start.
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"workbench-{name}"[:64])])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of nodes differ, and a node with a slow clock would reject a certificate that starts now.
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(folder / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))
    _write(folder / KEY, private)


def _write(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def remove(folder: Path) -> None:
    """Remove the certificate and the key."""
    for name in (CERTIFICATE, KEY):
        (folder / name).unlink(missing_ok=True)


def security(folder: Path) -> Security:
    """Return the security of all connections of the cluster: TLS with certificates of both sides."""
    from distributed.security import Security

    certificate, key = str(folder / CERTIFICATE), str(folder / KEY)
    return Security(
        require_encryption=True,
        tls_ca_file=certificate,
        tls_scheduler_cert=certificate,
        tls_scheduler_key=key,
        tls_worker_cert=certificate,
        tls_worker_key=key,
        tls_client_cert=certificate,
        tls_client_key=key,
    )
