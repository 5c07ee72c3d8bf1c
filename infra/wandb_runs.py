"""Writes metrics of a run to Weights & Biases: to its server, or to files that `wandb sync` uploads later.

Its package works in a process of its own (wandb_process.py), which is ended with the run: that package replaces how the process
that imports it exits, lets the web page's button Stop end that process, and waits for its server. None of that may reach a
training.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from nbrl.infra.closed import ClosedModel, acts_if
from nbrl.infra.errors import ServerError
from nbrl.infra.parse import json_value
from nbrl.infra.process.child import kept

ANSWER_S = 10.0  # for the metrics of a step, which are only queued
BEGIN_S, END_S = 20.0, 20.0  # that W&B's own calls may take; what comes after the run's last metrics has a minute in all
EXTRA_S = 12.0  # more than these, by which it gives up by itself and says why
GRACE_S = 2.0
# Of the variables that W&B reads, those that say where its server is and who the user is. Any other could change what is sent.
PASSED = (
    "WANDB_API_KEY",
    "WANDB_IDENTITY_TOKEN_FILE",
    "WANDB_CREDENTIALS_FILE",
    "WANDB_BASE_URL",
    "WANDB_CONFIG_DIR",
    "WANDB_INSECURE_DISABLE_SSL",
)
CREDENTIALS = PASSED[:2]


class WandbSettings(ClosedModel):
    """Runs of Weights & Biases, which have the metrics too; needs the extra wandb. Its server is that of WANDB_BASE_URL."""

    project: str = Field(
        pattern=r"^[^/\\#?%:]{1,128}$", description="the W&B project of the runs; it is created if it does not exist"
    )
    entity: str | None = Field(
        None, min_length=1, description="the user or team that the project belongs to; when not set, that of the user's key"
    )
    mode: Literal["online", "offline"] = Field(
        description="online sends metrics and parameters to W&B's server as they come, by the user's key (WANDB_API_KEY or "
        "`wandb login`); offline writes files and sends nothing"
    )
    folder: str | None = Field(
        None,
        description="a folder in which each run has one with W&B's files, for `wandb sync`; must be set offline",
        json_schema_extra=acts_if("mode", "offline"),
    )

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if self.mode == "offline" and self.folder is None:
            raise ValueError("mode is offline, which writes files, and folder is not set; set folder, or mode to online")
        return self


class WandbRuns:
    """The W&B runs of one run, a sink of metrics: each beginning makes one, for W&B can neither empty nor replace a run."""

    def __init__(self, settings: WandbSettings, run: str, parameters: Mapping[str, object]) -> None:
        self.name = f"Weights & Biases' project {settings.project}"
        self._settings, self._run, self._parameters = settings, run, dict(parameters)
        self._folder = None if settings.folder is None else Path(settings.folder).absolute() / run
        self._process: subprocess.Popen[bytes] | None = None
        self._talk: socket.socket | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def begin(self) -> None:
        """Begin a W&B run of this name. One on the server stays beside it; files of earlier ones are deleted."""
        self._stop()
        self._scratch = tempfile.TemporaryDirectory(prefix="nbrl-wandb-")
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            for earlier in self._folder.glob("wandb/offline-run-*"):
                shutil.rmtree(earlier)
        given = self._settings.model_dump(include={"project", "entity", "mode"})
        names = {
            "name": self._run,
            "group": self._run,
            "config": self._parameters,
            "dir": str(self._folder or self._scratch.name),
        }
        self._start(self._scratch.name)
        self._ask({"init": given | names, "begin_s": BEGIN_S, "end_s": END_S}, BEGIN_S + EXTRA_S)

    def log_metrics(self, metrics: Mapping[str, float], step: int, time_s: float) -> None:
        """Log the metrics of a step at the time when they were measured."""
        self._ask({"metrics": dict(metrics), "step": step, "time_s": time_s}, ANSWER_S)

    def end(self) -> None:
        """Finish the W&B run and end its process. Raises ServerError if the server has not got all of it."""
        if self._talk is not None:
            self._ask({"end": True}, END_S + EXTRA_S)
        self._stop()

    def _start(self, scratch: str) -> None:
        own = {"WANDB_ERROR_REPORTING": "false", "WANDB_CACHE_DIR": scratch, "WANDB_DATA_DIR": scratch, "TMPDIR": scratch}
        env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_") or name in PASSED}
        self._talk, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*kept(0, GRACE_S), sys.executable, "-m", "nbrl.infra.wandb_process", str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=env | own,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                bufsize=0,
            )

    def _ask(self, request: Mapping[str, Any], limit_s: float) -> None:
        """Send a request and wait until it is done. Raises ServerError, after which the process is gone."""
        if self._talk is None:
            raise ServerError("no W&B run was begun")
        try:
            self._talk.settimeout(limit_s)
            self._talk.sendall(json.dumps(request).encode() + b"\n")
            answer = self._line(self._talk)
        except TimeoutError:
            error = f"it does not answer within {limit_s:g} seconds"
        except OSError as fault:
            error = f"its process has ended: {fault.strerror}"
        else:
            error = json_value(answer)["error"] if answer else "its process has ended"
        if error:
            self._stop()
            raise ServerError(error)

    def _line(self, talk: socket.socket) -> bytes:
        """Return the answer, one line; empty if the process has ended."""
        line = b""
        while not line.endswith(b"\n"):
            if not (more := talk.recv(1 << 16)):
                return b""
            line += more
        return line

    def _stop(self) -> None:
        """End the process, if there is one, with everything that it started."""
        if self._talk is not None:
            self._talk.close()
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()  # by which the keeper ends all
            self._process.wait()
        if self._scratch is not None:
            self._scratch.cleanup()
        self._talk = self._process = self._scratch = None


def has_credentials() -> bool:
    """Return whether W&B may find the user's key, without asking its server: by a variable, or where `wandb login` puts it."""
    places = [Path(given)] if (given := os.environ.get("NETRC")) else [Path.home() / ".netrc", Path.home() / "_netrc"]
    return any(os.environ.get(name) for name in CREDENTIALS) or any(place.is_file() for place in places)
