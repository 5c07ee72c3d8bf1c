"""A package index over HTTPS, behind a certificate of its own authority, as a company has it."""

import base64
import contextlib
import datetime
import functools
import hashlib
import http.server
import ipaddress
import ssl
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def write_wheel(folder: Path, name: str) -> Path:
    """A wheel of one module that holds nothing."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": b"",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    files[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return wheel


def write_index(root: Path, wheel: Path) -> None:
    """The page of the wheel's project, as PEP 503 has it."""
    name = wheel.name.partition("-")[0]
    (root / "simple" / name).mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (root / "files").mkdir(exist_ok=True)
    (root / "files" / wheel.name).write_bytes(wheel.read_bytes())
    page = f'<!DOCTYPE html><a href="../../files/{wheel.name}#sha256={digest}">{wheel.name}</a>'
    (root / "simple" / name / "index.html").write_text(page)


def write_certificate(folder: Path) -> Path:
    """The certificate of an authority, with one for 127.0.0.1 that it signed beside it, and that one's key."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    company, host = (
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in ("a company", "the company's index")
    )
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    authority = _certificate(company, company, authority_key, authority_key, x509.BasicConstraints(ca=True, path_length=None))
    served = _certificate(host, company, key, authority_key, here)
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = folder / "company.pem"
    path.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    (folder / "host.pem").write_bytes(served.public_bytes(serialization.Encoding.PEM))
    (folder / "host.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    return path


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    by: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
    return (
        made.not_valid_after(now + datetime.timedelta(days=30)).add_extension(extension, critical=False).sign(by, hashes.SHA256())
    )


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def serving(root: Path, certificate: Path) -> Iterator[str]:
    """The address of the index while `root` is served with what the authority of this certificate signed."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Silent, directory=str(root)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.with_name("host.pem"), certificate.with_name("host.key"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"https://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
        server.server_close()
