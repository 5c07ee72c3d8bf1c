"""Who began this process, with which command, and from which commit: facts for people, which nothing depends on."""

import getpass
import re
import shlex
import subprocess
import sys
from pathlib import Path

LONGEST = 2000
GIT_S = 5.0
PASSWORD = re.compile(r"(://[^/\s:@]+):[^/\s@]+@")  # of an address


def without_passwords(text: str) -> str:
    """The text with `***` for the passwords of addresses in it."""
    return PASSWORD.sub(r"\1:***@", text)


def user() -> str:
    """The user's name; empty where the system knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""


def command() -> str:
    """The command line of this process, without the folder of its program and without passwords."""
    if not sys.argv or not sys.argv[0]:
        return ""
    return without_passwords(shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]))[:LONGEST]


def commit() -> str:
    """The commit that is checked out in the working folder; empty if it is in no git checkout. Starts git."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=GIT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    found = done.stdout.strip()
    return found if done.returncode == 0 and re.fullmatch(r"[0-9a-f]{40,64}", found) else ""
