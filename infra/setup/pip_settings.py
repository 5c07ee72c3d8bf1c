"""Gives uv, which does not read them, pip's settings: where packages are, certificates, proxy, patience.

Reads what `pip config list` prints from stdin, its variables included, and prints the assignments for a shell to evaluate. A
variable of uv's own that is set stays as it is.
"""

import ast
import os
import shlex
import sys
from pathlib import Path

# Where pip looks for a setting, the strongest last.
SECTIONS = ("global", "install", ":env:")


def pip_settings(listing: str) -> dict[str, list[str]]:
    """Return the words of every setting: pip separates several by white space."""
    settings: dict[str, str] = {}
    for section in SECTIONS:
        for line in listing.splitlines():
            key, equals, value = line.partition("=")
            place, _, name = key.rpartition(".")
            if equals and place == section:
                settings[name] = ast.literal_eval(value)
    return {name: value.split() for name, value in settings.items() if value.strip()}


def uv_variables(settings: dict[str, list[str]], environment: dict[str, str]) -> dict[str, str]:
    """Return uv's variables for pip's settings, without those that the environment has already under any name that uv knows."""
    extra = [address for address in settings.get("extra-index-url", []) if _exists(address)]
    links = [place for place in settings.get("find-links", []) if _exists(place)]
    certificates = (
        " ".join(settings.get("cert", [])) or environment.get("REQUESTS_CA_BUNDLE") or environment.get("CURL_CA_BUNDLE")
    )
    timeout = settings.get("timeout") or settings.get("default-timeout") or []
    proxy = " ".join(settings.get("proxy", []))
    wanted = {
        ("UV_DEFAULT_INDEX", "UV_INDEX_URL"): " ".join(settings.get("index-url", [])),
        ("UV_INDEX", "UV_EXTRA_INDEX_URL"): " ".join(extra),
        # pip takes the best version of all indexes; a lock's hashes say what may come.
        ("UV_INDEX_STRATEGY",): "unsafe-best-match",
        ("UV_FIND_LINKS",): ",".join(links),
        ("UV_NO_INDEX",): "true" if settings.get("no-index", ["false"])[0].lower() in ("1", "true", "yes", "on") else "",
        ("UV_INSECURE_HOST",): " ".join(settings.get("trusted-host", [])),
        ("UV_HTTP_TIMEOUT",): " ".join(timeout),
        ("SSL_CERT_FILE",): certificates,
        ("UV_SYSTEM_CERTS", "UV_NATIVE_TLS"): "true",
        ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"): proxy,
        ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"): proxy,
    }
    return {names[0]: value for names, value in wanted.items() if value and not any(environment.get(name) for name in names)}


def _exists(address: str) -> bool:
    """Return whether an address exists: pip skips a missing folder with a warning; uv ends."""
    return ("://" in address and not address.startswith("file://")) or Path(address.removeprefix("file://")).exists()


if __name__ == "__main__":
    for name, value in uv_variables(pip_settings(sys.stdin.read()), dict(os.environ)).items():
        print(f"export {name}={shlex.quote(value)}")
