"""`nbrl agent`: its options, its output, its saved notebook and its exit code."""

import asyncio
import os
import secrets
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.guard import cancel_on_term, guard
from nbrl.flows.cli.interrupt import Importing
from nbrl.flows.cli.stored import Trust, storage_at
from nbrl.flows.display.terminal import err, out, plain, say

NOT_ANSWERED = 3


def agent(
    context: typer.Context,
    question: Annotated[str | None, typer.Argument(help="what the agent is to find out or to do")] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="a SGLang server, or an OpenAI-compatible one (…/v1)")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="RUN[@N]",
            help="the policy of a run, which is served meanwhile, with the run's settings, tools and passages",
            autocompletion=completion.models,
        ),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="the run's environment whose tools and passages are used; the first by default"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="name of the model; not needed if the server has only one")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="the model's tokenizer, for exchanging token ids with a SGLang server")
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="the environment variable that holds the key", autocompletion=completion.variables),
    ] = None,
    file: Annotated[
        list[Path] | None, typer.Option(metavar="PATH", help="a file to put into the agent's working folder; may be repeated")
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(metavar="FILE", help="passages for the tool search: .jsonl, or text with one passage per line")
    ] = None,
    web: Annotated[
        Literal["serper", "exa", "firecrawl"] | None,
        typer.Option(help="engine of the tool search; its key is read from ENGINE_API_KEY"),
    ] = None,
    mcp: Annotated[
        list[str] | None,
        typer.Option(metavar="COMMAND|URL", help="the tools of a Model Context Protocol server; may be repeated"),
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="use exactly these built-in tools; repeat the option or separate names by commas",
            autocompletion=completion.built_in_tools,
        ),
    ] = None,
    tool_settings: Annotated[
        Path | None, typer.Option(metavar="FILE.yaml", help="settings of the tools, as under rollout.tools in a recipe")
    ] = None,
    ability: Annotated[str, typer.Option(metavar="NAME", help="use the tools that --tool-settings gives to this ability")] = "",
    system_prompt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="a system prompt of your own, with the placeholders {form} and {tools}")
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(metavar="SAVED", help="a notebook, a JSON file or RUN/TRAJECTORY; tools answer as recorded there"),
    ] = None,
    root: Annotated[
        str, typer.Option(help="storage root of the run of --run, or of a RUN/TRAJECTORY to replay")
    ] = completion.ROOT,
    max_steps: Annotated[int, typer.Option(help="maximum think-code-observe steps")] = 20,
    context_tokens: Annotated[int, typer.Option(help="maximum tokens of prompt and action together")] = 25_600,
    action_tokens: Annotated[int, typer.Option(help="maximum tokens of one action")] = 3_072,
    trim: Annotated[
        Literal["none", "hard", "soft"],
        typer.Option(
            help="when the context is full: end (none), keep the last and pinned steps (hard), or summarise the others (soft)"
        ),
    ] = "hard",
    cell_timeout: Annotated[float, typer.Option(metavar="SECONDS", help="maximum time of one cell")] = 60.0,
    deadline: Annotated[float, typer.Option(metavar="SECONDS", help="maximum time in total")] = 1_800.0,
    temperature: Annotated[float, typer.Option(help="sampling temperature; 0 always takes the likeliest token")] = 1.0,
    top_p: Annotated[float, typer.Option(help="sample among the likeliest tokens that together have this probability")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="sent with each request, for servers that sample by seed")] = None,
    thinking: Annotated[
        Literal["tag", "native"],
        typer.Option(help="the model is asked to think in a tag, or is a reasoning model that thinks by itself"),
    ] = "tag",
    code_style: Annotated[
        Literal["tag", "fence"], typer.Option(help="the model writes cells in a tag, or in a ```python block")
    ] = "tag",
    sees_images: Annotated[bool, typer.Option("--sees-images", help="send images from cells to a chat model")] = False,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE.ipynb", help="where to write the notebook; by default under a name with date and time"),
    ] = None,
    files_to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="write the files that the agent made to this folder, new or empty")
    ] = None,
    no_save: Annotated[bool, typer.Option("--no-save", help="write no notebook")] = False,
    json_: Annotated[bool, typer.Option("--json", help="print the trajectory as JSON instead of the answer")] = False,
    trust: Trust = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print only the answer")] = False,
) -> None:
    """Ask the agent a question: the model at URL thinks and writes cells, which run in a sandbox on this machine.

    With --replay and no --endpoint the recorded actions are played again, without any request to a model or service.

    The steps are shown on stderr as they happen, the answer is printed on stdout, and everything is saved as a notebook. The exit
    code is 0 if the agent answered, 3 if it did not, 1 after an error and 130 after Ctrl-C.
    """
    kept: list[Any] = []
    path = None if no_save else save or Path(time.strftime(f"nbrl-%Y%m%d-%H%M%S-{secrets.token_hex(2)}.ipynb"))

    def stopped() -> str:
        return f"what was done until then is in {path}" if path is not None and kept and kept[0].steps else "nothing is saved"

    def work() -> None:
        with Importing():
            from nbrl.agent.policy import Sampling
            from nbrl.agent.settings import AgentSettings
            from nbrl.agent.tools.library import Equipment
            from nbrl.flows.ask.endpoint import Endpoint, checked
            from nbrl.flows.ask.question import AgentQuestion, answer, attachments, check_folder
            from nbrl.flows.ask.tools import ToolOptions, require_keys
            from nbrl.flows.ask.trained import load, trained, verdict
            from nbrl.flows.display.trajectory import EpisodeSpinner, writable
            from nbrl.flows.display.trajectory import save as write
            from nbrl.tasks.errors import ConfigError

        if save is not None and no_save:
            raise ConfigError("--save and --no-save contradict each other; give one of them")
        if path is not None:
            writable(path)
        if files_to is not None:
            check_folder(files_to)
        given = _given(context)
        _refuse_idle(given, endpoint, replay, run)
        recorded = load(replay, root) if replay is not None else None
        question_text = question if question is not None or recorded is None else recorded.question
        if not question_text or not question_text.strip():
            raise ConfigError("there is no question; give one, or a recording by --replay")
        # Bytes of the command line that are not UTF-8 arrive as lone surrogates, which cannot be sent.
        text = question_text.encode("utf-8", "replace").decode()
        server = None
        if endpoint is not None:
            server = Endpoint(endpoint, model, _key(api_key_env), tokenizer, sees_images, seed is not None)
        played = None if recorded is None or server is not None else sum(step.kind == "cell" for step in recorded.steps)
        names = [name.strip() for part in tools for name in part.split(",")] if tools is not None else None
        tell = _tell_nobody if quiet else say
        limits: dict[str, Any] = {
            "max_steps": max_steps if played is None else played,
            "context_tokens": context_tokens,
            "action_tokens": action_tokens,
            "trim": trim,
            "cell_timeout_s": cell_timeout,
            "deadline_s": deadline,
            "thinking": thinking,
            "code_style": code_style,
            **_own_prompt(system_prompt),
        }
        chosen: dict[str, Any] = {"temperature": temperature, "top_p": top_p}
        options = ToolOptions(names, corpus, web, tuple(mcp or ()), tool_settings, ability)

        def keep(trajectory: Any) -> None:
            kept.append(trajectory)
            if path is not None and trajectory.steps:
                write(path, trajectory)

        with ExitStack() as stack:
            instruction = ""
            if run is not None:
                with nullcontext() if quiet else err.status(f"starting {run}"):
                    policy = stack.enter_context(trained(storage_at(root), run, environment, tell, trust))
                server, instruction = policy.endpoint, policy.instruction
                limits = policy.agent.model_dump() | _overriding(limits, given)
                chosen = policy.sampling.model_dump() | _overriding(chosen, given)
            if run is not None and not given & TOOLS:
                available, equipment = policy.tools, policy.equipment
            else:
                available = options.settings(server, api_key_env, attached=bool(file))
                equipment = Equipment(options.open_corpus(tell))
            if recorded is None:
                require_keys(available, ability)
            full_question = AgentQuestion(
                text=text,
                endpoint=server,
                agent=checked(AgentSettings, **limits),
                sampling=checked(Sampling, **chosen),
                seed=seed or 0,
                files=attachments(file or []),
                files_to=files_to,
                tools=available,
                equipment=equipment,
                ability=ability,
                recorded=recorded,
                tokenizer=tokenizer,
                instruction=instruction,
            )
            with nullcontext() if quiet else EpisodeSpinner(err, full_question.task, full_question.agent) as live:
                asyncio.run(cancel_on_term(lambda: answer(full_question, live, keep, tell)))
        if recorded is not None and played is not None and not quiet:
            say(verdict(recorded, kept[0]))

    guard(work, stopped)
    _close(kept[0], path, json_, quiet)


def _tell_nobody(_: str) -> None:
    """Print nothing, for --quiet."""


TOOLS = frozenset({"corpus", "web", "mcp", "tools", "tool_settings"})
_ACTING = ("question", "model", "api_key_env", "max_steps", "temperature", "top_p", "seed", "sees_images")
_SERVED = ("endpoint", "model", "api_key_env", "tokenizer", "sees_images", "replay")


def _given(context: typer.Context) -> frozenset[str]:
    """Return names of the parameters that stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")


def _overriding(options: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
    """Return those of the options that stand on the command line."""
    return {name: value for name, value in options.items() if name.removesuffix("_s") in given}


def _refuse_idle(given_names: frozenset[str], endpoint: str | None, replay: str | None, run: str | None) -> None:
    """Raises ConfigError for an option that would have no effect, and if there is neither a model nor a recording."""
    from nbrl.tasks.errors import ConfigError

    if run is not None:
        if other := [name for name in _SERVED if name in given_names]:
            option = other[0].replace("_", "-")
            raise ConfigError(f"--{option} does nothing beside --run, which serves the run's own policy; give one of them")
        return
    for name in ("environment", "trust"):
        if name in given_names:
            raise ConfigError(f"--{name} is of a run's; leave it out, or give --run")
    if replay is None and "root" in given_names:
        raise ConfigError("--root is where --run and --replay look for a run; leave it out, or give one of them")
    if endpoint is None and replay is None:
        raise ConfigError("no model given: pass --endpoint URL, --run RUN or --replay FILE")
    if endpoint is None and (idle := [name for name in _ACTING if name in given_names]):
        option = "a question" if idle[0] == "question" else f"--{idle[0].replace('_', '-')}"
        raise ConfigError(f"{option} does nothing where recorded actions are played; leave it out, or give --endpoint")


def _own_prompt(file: Path | None) -> dict[str, str]:
    from nbrl.infra.paths import content
    from nbrl.tasks.errors import ConfigError

    if file is None:
        return {}
    try:
        words = content(file).decode().replace("\r\n", "\n").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"the system prompt {file} cannot be read as text: {error}") from error
    if not words:
        raise ConfigError(f"the system prompt {file} is empty; write in it what the agent is to know, or leave it out")
    return {"system_prompt": words}


def _key(variable: str | None) -> str | None:
    from nbrl.tasks.errors import ConfigError

    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key or not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the environment variable {variable} holds no key; set it, or name another by --api-key-env")
    return key


def _close(trajectory: Any, path: Path | None, as_json: bool, quiet: bool) -> None:
    """Print the result and exit with its code."""
    from nbrl.agent.trajectory import Status

    if as_json:
        from nbrl.agent.notebook import recording

        typer.echo(recording.as_json(trajectory))
    elif trajectory.answer is not None:
        out.print(plain(trajectory.answer), soft_wrap=True)
    if trajectory.failure:
        say(trajectory.failure, "red")
    elif trajectory.status is Status.TOKEN_LIMIT and not trajectory.steps:
        say("the question and the tools leave no space for an action; raise --context-tokens or lower --action-tokens", "red")
    elif not quiet:
        say(f"{trajectory.status} after {len(trajectory.steps)} steps, {trajectory.seconds:.1f} s")
    if path is not None and trajectory.steps and not quiet:
        say(f"saved as {path}")
    if trajectory.status is not Status.ANSWERED:
        raise typer.Exit(1 if trajectory.failure else NOT_ANSWERED)
