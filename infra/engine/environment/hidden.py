"""Keeps keys out of the log, into which SGLang writes all its options, and out of its answers."""

NAMES = ("api_key", "admin_api_key")


class Hidden(str):
    """A text that does not show when it is printed as part of something."""

    def __repr__(self) -> str:
        return "'[key]'"


def hide(options: object) -> None:
    """Hide the keys among the options of a server."""
    for name in NAMES:
        if key := getattr(options, name):
            setattr(options, name, Hidden(key))


def without(answer: object) -> object:
    """Return the same answer with keys hidden, however deep they are."""
    if isinstance(answer, dict):
        return {name: "[key]" if name in NAMES and value else without(value) for name, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [without(value) for value in answer]
    return answer


def install() -> None:
    """Remove keys from the server's /server_info: every client can read it."""
    from sglang.srt.entrypoints import http_server

    original = http_server.msgspec_to_builtins
    http_server.msgspec_to_builtins = lambda answer: without(original(answer))
