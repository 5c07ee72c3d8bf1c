"""`nbrl agent`: its options, its output, its saved notebook and its exit code."""

import asyncio
import json
import secrets
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.guard import cancel_on_term, on_stop
from nbrl.flows.cli.stored import Home, Root, Set, Trust, overrides_of, root_at, storage_at
from nbrl.flows.display.terminal import err, out, plain, say

NOT_ANSWERED = 3


def agent(
    question: Annotated[str | None, typer.Argument(help="what the agent is to find out or to do")] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="a SGLang server, or an OpenAI-compatible one (…/v1)")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="RUN[@N]",
            help="the policy of a run, which is served meanwhile, with the run's settings, tools and passages",
            autocompletion=completion.runs,
        ),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="the run's environment whose tools and passages are used; the first by default"),
    ] = None,
    recipe: Annotated[
        str,
        typer.Option(
            help="a recipe's name or YAML file, whose agent, rollout.tools, evaluate.sampling and sandbox are used",
            autocompletion=completion.recipes,
            show_default=False,
        ),
    ] = "",
    set_: Set = None,
    program: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="try a program as the agent, in place of the notebook: see docs/programs.md; its folder is shown to it at "
            "/opt/program",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="name of the model; not needed if the server has only one")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="the model's tokenizer, for exchanging token ids with a SGLang server")
    ] = None,
    api_key_env: Annotated[str | None, typer.Option(metavar="NAME", help="the environment variable that holds the key")] = None,
    sees_images: Annotated[bool, typer.Option("--sees-images", help="send images from cells to a chat model")] = False,
    file: Annotated[
        list[Path] | None, typer.Option(metavar="PATH", help="a file to put into the agent's working folder; may be repeated")
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="passages for the tool search: a table as of environments, or text with one per line"),
    ] = None,
    ability: Annotated[str, typer.Option(metavar="NAME", help="use the tools that the settings give to this ability")] = "",
    replay: Annotated[
        str | None,
        typer.Option(metavar="SAVED", help="a notebook, a JSON file or RUN/TRAJECTORY; tools answer as recorded there"),
    ] = None,
    home: Home = None,
    root: Root = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE.ipynb", help="where to write the notebook; by default under a name with date and time"),
    ] = None,
    files_to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="write the files that the agent made to this folder, new or empty")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="add the question with --right to this file: see docs/nightly.md")
    ] = None,
    right: Annotated[
        list[str] | None, typer.Option("--right", metavar="ANSWER", help="what answers the question, with --keep; several may")
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
    from nbrl.flows.ask.endpoint import Endpoint, key_in
    from nbrl.flows.ask.equipment import check_tools, of_recipe, of_run
    from nbrl.flows.ask.kept import check_keep, keep_question
    from nbrl.flows.ask.question import AgentQuestion, answer, attachments, check_folder
    from nbrl.flows.ask.replay import cells, load, verdict
    from nbrl.flows.display.saved import save as write
    from nbrl.flows.display.saved import writable
    from nbrl.flows.display.trajectory import EpisodeSpinner
    from nbrl.tasks.errors import ConfigError

    kept: list[Any] = []
    path = None if no_save else save or Path(time.strftime(f"nbrl-%Y%m%d-%H%M%S-{secrets.token_hex(2)}.ipynb"))

    def stopped() -> str:
        return f"what was done until then is in {path}" if path is not None and kept and kept[0].steps else "nothing is saved"

    on_stop(stopped)
    if save is not None and no_save:
        raise ConfigError("--save and --no-save contradict each other; give one of them")
    if path is not None:
        writable(path)
    if files_to is not None:
        check_folder(files_to)
    check_keep(keep, right or [], bool(file) or replay is not None)
    of_server = {"--model": model, "--api-key-env": api_key_env, "--sees-images": sees_images}
    given = {"a question": question, "--endpoint": endpoint, **of_server, "--tokenizer": tokenizer, "--recipe": recipe}
    given |= {"--replay": replay, "--environment": environment, "--trust": trust, "--root": root is not None}
    _refuse_idle(given, run, endpoint, replay)
    recorded = load(replay, root_at(home, root)) if replay is not None else None
    question_text = question if question is not None or recorded is None else recorded.question
    if not question_text or not question_text.strip():
        raise ConfigError("there is no question; give one, or a recording by --replay")
    played = recorded is not None and endpoint is None
    key, overrides, report = key_in(api_key_env), overrides_of(home, set_), (lambda _: None) if quiet else say
    if program is not None:
        overrides = [*_as_agent(program), *overrides]

    def finished(trajectory: Any) -> None:
        kept.append(trajectory)
        if path is not None and trajectory.steps:
            write(path, trajectory)

    with ExitStack() as stack:
        if run is not None:
            with nullcontext() if quiet else err.status(f"starting {run}"):
                serving = of_run(storage_at(home, root), run, environment, overrides, corpus, trust, report)
                equipped = stack.enter_context(serving)
        else:
            equipped = of_recipe(recipe, overrides, corpus, bool(file), played, report)
        check_tools(equipped, ability, recorded is not None)
        config, server = equipped.config, equipped.endpoint
        if endpoint is not None:
            server = Endpoint(endpoint, model, key, tokenizer, sees_images, "seed" in config.model_fields_set)
        limits = config.agent.model_copy(update={"max_steps": cells(recorded)} if recorded is not None and played else {})
        full_question = AgentQuestion(
            # Bytes of the command line that are not UTF-8 arrive as lone surrogates, which cannot be sent.
            text=question_text.encode("utf-8", "replace").decode(),
            endpoint=server,
            agent=limits,
            sampling=config.evaluate.sampling,
            seed=config.seed,
            files=attachments(file or []),
            files_to=files_to,
            tools=config.rollout.tools,
            equipment=equipped.equipment,
            sandbox=config.sandbox,
            ability=ability,
            recorded=recorded,
            tokenizer=tokenizer,
            instruction=equipped.instruction,
        )
        with nullcontext() if quiet else EpisodeSpinner(err, full_question.task, full_question.agent) as live:
            asyncio.run(cancel_on_term(lambda: answer(full_question, live, finished, report)))
    if recorded is not None and played and not quiet:
        say(verdict(recorded, kept[0]))
    try:
        _close(kept[0], path, json_, quiet)
    finally:  # of what has no answer, too
        if keep is not None:
            keep_question(keep, full_question.text, right or [])


def _as_agent(program: Path) -> list[str]:
    """Return the settings by which a program is the agent."""
    inside = f"/opt/program/{program.name}"
    command = ["python", inside] if program.suffix == ".py" else [inside]
    return [
        "agent.kind=program",
        f"agent.command={json.dumps(command)}",
        f"agent.folder={json.dumps(str(program.absolute().parent))}",
    ]


def _refuse_idle(given: dict[str, Any], run: str | None, endpoint: str | None, replay: str | None) -> None:
    """Raises ConfigError for an option that would have no effect, and if there is neither a model nor a recording."""
    from nbrl.tasks.errors import ConfigError

    of_server = ["--model", "--api-key-env", "--sees-images"]
    idle: dict[str, str] = {}
    if run is not None:
        others = ["--endpoint", *of_server, "--tokenizer", "--recipe", "--replay"]
        idle = dict.fromkeys(others, "beside --run, which serves the run's own policy with the run's settings")
    else:
        idle = dict.fromkeys(["--environment", "--trust"], "without --run")
        if endpoint is None and replay is None:
            raise ConfigError("no model given: pass --endpoint URL, --run RUN or --replay FILE")
        if replay is None:
            idle["--root"] = "without --run or --replay"
        elif endpoint is None:
            idle |= dict.fromkeys(["a question", *of_server], "where recorded actions are played, without --endpoint")
    for option, why in idle.items():
        if given[option]:
            raise ConfigError(f"{option} does nothing {why}; leave it out")


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
        say(
            "the question and the tools leave no space for an action; raise agent.context_tokens or lower agent.action_tokens",
            "red",
        )
    elif not quiet:
        say(f"{trajectory.status} after {len(trajectory.steps)} steps, {trajectory.seconds:.1f} s")
    if path is not None and trajectory.steps and not quiet:
        say(f"saved as {path}")
    if trajectory.status is not Status.ANSWERED:
        raise typer.Exit(1 if trajectory.failure else NOT_ANSWERED)
