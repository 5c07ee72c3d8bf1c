"""Keeps keys out of the log, into which SGLang writes all its options."""


class Hidden(str):
    """A text that does not show when it is printed as part of something."""

    def __repr__(self) -> str:
        return "'[key]'"


def hide(options: object) -> None:
    """Hide the keys among the options of a server."""
    for name in ("api_key", "admin_api_key"):
        if key := getattr(options, name):
            setattr(options, name, Hidden(key))
