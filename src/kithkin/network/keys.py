"""Keys and certificates: a site's key pair, and a federation's own authority with a certificate for its server."""

from __future__ import annotations

import datetime
import os
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kithkin.errors import KithkinError

PEM = serialization.Encoding.PEM
PLAIN = serialization.NoEncryption()
YEARS = {"ca": 10, "server": 2}


def write_secret(path: Path, content: bytes) -> None:
    """A file that its owner alone can read, from its first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
        f.write(content)


def make_site_key(folder: Path) -> str:
    """A key pair in the folder; the public one as OpenSSH writes it."""
    private = ec.generate_private_key(ec.SECP384R1())
    write_secret(folder / "site.key", private.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, PLAIN))
    public = private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    (folder / "site.pub").write_text(public + "\n")
    return public


def check_public_key(text: str, whose: str) -> None:
    try:
        key = serialization.load_ssh_public_key(text.encode())
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("not of an elliptic curve")
    except Exception as e:  # the library raises several kinds
        raise KithkinError(
            f"The key of {whose} is no public key ({e}).", "Copy the line that `kithkin site init` prints."
        ) from None


def make_authority(folder: Path, host: str) -> None:
    """ca.crt and ca.key, and server.crt and server.key for this host, which may be a name or an address."""
    ca_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    try:
        host = host.encode("idna").decode()
    except UnicodeError as e:
        raise KithkinError(f"'{host}' is no host's name ({e}).", "Give --server a name, or an address.") from None
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kithkin federation")])
    ca = _certificate(authority, authority, ca_key.public_key(), YEARS["ca"])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).add_extension(usage, critical=True)
    names: list[Any] = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    try:
        names.insert(0, x509.IPAddress(ip_address(host)))
    except ValueError:
        names.insert(0, x509.DNSName(host))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])  # all that fits; the names above count
    server = (
        _certificate(subject, authority, key.public_key(), YEARS["server"])
        .add_extension(x509.SubjectAlternativeName(list(dict.fromkeys(names))), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    ca = ca.add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
    for name, certificate, private in (("ca", ca, ca_key), ("server", server, key)):
        write_secret(folder / f"{name}.key", private.private_bytes(PEM, serialization.PrivateFormat.PKCS8, PLAIN))
        (folder / f"{name}.crt").write_bytes(certificate.sign(ca_key, hashes.SHA384()).public_bytes(PEM))


def _certificate(subject: x509.Name, issuer: x509.Name, public: Any, years: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=365 * years))
    )
