"""Keeps pages of other sites out of the server, as out of all servers of this machine."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

OWN_PAGES = Path(__file__).parents[2] / "process" / "own_pages.py"  # nbrl is not installed in this environment


def install(host: str) -> None:
    """Refuse what a page of another site asks a server that listens on `host`. Beyond this machine it may have any name."""
    from sglang.srt.entrypoints import http_server

    spec = spec_from_file_location(OWN_PAGES.stem, OWN_PAGES)
    assert spec is not None
    assert spec.loader is not None
    own_pages = module_from_spec(spec)
    spec.loader.exec_module(own_pages)
    hosts = own_pages.LOCAL if host in own_pages.LOCAL else None
    http_server.app.add_middleware(own_pages.for_own_pages, hosts=hosts)
