"""`nbrl serve`: a trained policy behind an OpenAI-compatible address."""

import signal
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.stored import Home, Root, Set, home_at, storage_at
from nbrl.flows.display.terminal import err, out

if TYPE_CHECKING:
    from nbrl.infra.engine.server import EngineServer
    from nbrl.infra.engine.settings import EngineSettings

LOOK_S, PATIENCE_S = 1.0, 30.0
POLICY = "policy.path="
VARIABLE = "NBRL_SERVE_KEY"  # of the key that was made, in the command that is shown


def serve(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN[@N]|FOLDER",
            help="the newest checkpoint of a run, that after N updates, or a model folder",
            autocompletion=completion.runs,
        ),
    ],
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1024, max=65535, help="port to listen on")] = 30000,
    name: Annotated[str, typer.Option(help="what requests call the model", show_default="that of the run or folder")] = "",
    api_key_env: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="environment variable with the key that every request must bring",
            show_default="a key is made, and shown",
        ),
    ] = "",
    record: Annotated[
        bool,
        typer.Option(
            "--record",
            help="record sessions of agents that run elsewhere, from which the run learns (an environment of the kind recorded)",
        ),
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="with --record: add questions whose sessions say what is right to a .jsonl file, to learn from; then RUN may be "
            "any run",
        ),
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            show_default="30",
            help="with --record: how long open sessions may go on with weights that are not the newest; new ones wait",
        ),
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto uses the GPUs if there are any")] = "auto",
    home: Home = None,
    root: Root = None,
    set_: Set = None,
) -> None:
    """Serve a policy until Ctrl-C, behind the chat API of OpenAI (…/v1), on a CPU too.

    `--set engine.KEY=VALUE` sets how the engine runs, as in a recipe. With `--record` the newest policy of a run that is trained
    meanwhile answers sessions, each at /sessions/ID/v1, until POST /sessions/ID/reward ends it; `--set policy.path=FOLDER` says
    where the model that the run began with is on this machine.
    """
    from nbrl.flows.ask.endpoint import key_in
    from nbrl.infra.engine.command import Door
    from nbrl.infra.engine.server import launch, wait
    from nbrl.infra.engine.settings import new_key
    from nbrl.infra.home import Home as LocalHome
    from nbrl.infra.process.identity import advertised
    from nbrl.tasks.errors import ConfigError
    from nbrl.tasks.runs.checkpoints import folder_of

    key = key_in(api_key_env) or ""
    if key.startswith("-"):
        raise ConfigError(f"--api-key-env: the key in {api_key_env} begins with -, which SGLang takes for an option; use another")
    made, key = not key, key or new_key()
    place = LocalHome(home_at(home))
    if record:
        if name:
            raise ConfigError("--name has no effect with --record, where requests may call the model as they like; leave it out")
        from nbrl.flows.ask.kept import check_file, keep_question
        from nbrl.flows.recording import record_sessions
        from nbrl.tasks.recorded.server import LiveDoor

        of_engine = [each for each in set_ or [] if not each.startswith(POLICY)]
        policies = [each.removeprefix(POLICY) for each in set_ or [] if each.startswith(POLICY)]
        settings = _engine(of_engine, device, None)
        door = LiveDoor(host, port, key, f"the key is {key if made else f'that in {api_key_env}'}")
        policy = policies[-1] if policies else None
        if keep is not None:
            check_file(keep)
        waited_s = PATIENCE_S if patience is None else patience
        kept = None if keep is None else partial(keep_question, keep)
        record_sessions(storage_at(home, root), model, place.root, settings, _logs(place.root), door, waited_s, policy, kept)
        return
    if patience is not None:
        raise ConfigError("--patience is for --record, whose open sessions hold new weights up; add --record, or leave it out")
    if keep is not None:
        raise ConfigError("--keep is for --record, whose sessions say what is right; add --record")
    settings = _engine(set_ or [], device, port)
    with folder_of(storage_at(home, root), place.root, model) as folder:
        called = name or _called(model)
        with err.status(f"starting {model}"):
            server = launch(settings, folder, _logs(place.root), door=Door(host, key, new_key(), called))
            wait([server])
        try:
            url = f"http://{advertised(host)}:{port}/v1"
            flags = f" --api-key-env {api_key_env or VARIABLE}{_limits(server.url, key)}"
            out.print(f"{called} answers at {url}; Ctrl-C ends it", highlight=False)
            given = f"{VARIABLE}={key} " if made else ""
            out.print(f'{given}nbrl agent --endpoint {url}{flags} "…"', highlight=False, soft_wrap=True)
            _until_ended(server)
        finally:
            server.stop()


def _engine(overrides: list[str], device: str, port: int | None) -> "EngineSettings":
    from nbrl.infra.engine.settings import EngineSettings
    from nbrl.tasks.runs.recipes import check_acting, from_settings

    check_acting(overrides, ("engine",))
    bare = [override.removeprefix("engine.") for override in overrides]
    return from_settings(EngineSettings, {"device": device, "port": port}, "the options", bare)


def _logs(home: Path) -> Path:
    """Return a folder for this user alone, because prompts may be in the log."""
    folder = home / "serve"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def _limits(url: str, key: str) -> str:
    """Return the options of `nbrl agent` for a model with a smaller context than its default, by what the server reports."""
    import asyncio

    from nbrl.agent.settings import AgentSettings
    from nbrl.flows.ask.endpoint import Endpoint, served

    async def limits() -> list[int]:
        endpoint = Endpoint(url, key=key or None)
        async with endpoint.client() as client:
            return [limit for limit in (await served(client, endpoint)).values() if limit is not None]

    usual = AgentSettings()
    least = min(asyncio.run(limits()), default=usual.context_tokens)
    if least >= usual.context_tokens:
        return ""
    action = max(8, least * usual.action_tokens // usual.context_tokens)
    return f" --set agent.context_tokens={least} --set agent.action_tokens={action}"


def _called(model: str) -> str:
    return Path(model.rstrip("/")).name or "policy"


def _until_ended(server: "EngineServer") -> None:
    """Wait for Ctrl-C or SIGTERM. Raises EngineError if the engine ends first."""
    from nbrl.infra.errors import EngineError

    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    while not ended.wait(LOOK_S):
        if not server.alive():
            raise EngineError(f"the engine ended: {server.ending()} (log: {server.log})")
