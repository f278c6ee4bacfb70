"""Keys and certificates: a site's key pair, and a federation's own authority with a certificate for its server."""

from __future__ import annotations

import datetime
import os
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kithkin.errors import KithkinError

PEM = serialization.Encoding.PEM
PLAIN = serialization.NoEncryption()
YEARS = {"ca": 10, "server": 2}


def write_secret(path: Path, content: bytes) -> None:
    """A file that its owner alone can read, from its first byte on; none where there is no room for all of it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(content)
    except OSError:
        path.unlink()
        raise


def make_site_key(folder: Path) -> str:
    """A key pair in the folder; the public one as OpenSSH writes it."""
    private = ec.generate_private_key(ec.SECP384R1())
    public = private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    (folder / "site.pub").write_text(public + "\n")
    write_secret(folder / "site.key", private.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, PLAIN))
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


def check_site_key(path: Path) -> None:
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise KithkinError(f"{path} is damaged.", "Bring it back, or make the site anew: its public key changes.")


def check_server_papers(ca: Path, certificate: Path, key: Path) -> None:
    """Refuse at once what TLS would refuse later, at every connection and in many words."""
    for path in (ca, certificate, key):
        if not path.is_file():
            raise KithkinError(
                f"There is no file {path}.", "Make it with `kithkin federation init`, or name another in the file."
            )
    check_authority(ca)
    own, *_ = _valid(certificate, 1)
    try:
        private: Any = serialization.load_pem_private_key(key.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KithkinError(f"{key} is damaged, or asks for a password.", "Bring it back, without one.") from None
    if private.public_key() != own.public_key():
        raise KithkinError(f"{key} is not the key of {certificate}.", "Bring back those that belong together.")


def check_authority(path: Path) -> None:
    _valid(path, None)


def _valid(path: Path, first: int | None) -> list[x509.Certificate]:
    """The certificates of a file, if one is valid now; where a chain follows the own one, the first must be."""
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except ValueError:
        raise KithkinError(f"{path} is no certificate.", "Bring it back.") from None
    now = datetime.datetime.now(datetime.UTC)
    if not any(c.not_valid_before_utc <= now < c.not_valid_after_utc for c in found[:first]):
        since, until = found[0].not_valid_before_utc, found[0].not_valid_after_utc
        remedy = "Renew it as docs/deploy.md says, or set this machine's clock."
        raise KithkinError(f"{path} is valid from {since:%Y-%m-%d} to {until:%Y-%m-%d}, not today.", remedy)
    return found


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
    names: list[Any] = [x509.DNSName("localhost"), *(x509.IPAddress(ip_address(own)) for own in ("127.0.0.1", "::1"))]
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
