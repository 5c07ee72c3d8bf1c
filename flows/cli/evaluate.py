"""`nbrl evaluate`."""

import asyncio
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.guard import cancel_on_term, on_stop
from nbrl.flows.cli.run_flow import run_flow
from nbrl.flows.cli.stored import Home, Root, Set, TakeOver, Trust, home_flag, overrides_of, request_of, root_at, root_flag
from nbrl.flows.display.terminal import out, say

KEY = "environment variable that holds the key of the server of "


def evaluate(
    context: typer.Context,
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="[RECIPE|QUESTIONS]",
            help="a recipe's name or YAML file, or a file of questions (CSV, JSON lines, Parquet …); may be left out to take the "
            "settings and questions of the run of --model",
            autocompletion=completion.recipes,
            show_default=False,
        ),
    ] = "",
    model: Annotated[
        str | None,
        typer.Option(
            metavar="RUN[@N]|FOLDER",
            help="the newest checkpoint of a run, that after N updates, or a model folder; by default the recipe's policy; with "
            "--endpoint the server's name of the model",
            autocompletion=completion.runs,
            show_default=False,
        ),
    ] = None,
    endpoint: Annotated[
        str, typer.Option(metavar="URL", help="evaluate a model behind an OpenAI-compatible server (…/v1)", show_default=False)
    ] = "",
    api_key_env: Annotated[str, typer.Option(metavar="NAME", help=f"{KEY}--endpoint", show_default=False)] = "",
    columns: Annotated[
        str,
        typer.Option(
            metavar="question=A,answers=B",
            help="your file's columns, where they are not called question and answers (or answer)",
            show_default=False,
        ),
    ] = "",
    rule: Annotated[
        str, typer.Option(metavar="NAME", help="how answers to a file's questions are compared", show_default="qa")
    ] = "",
    environments: Annotated[
        str | None, typer.Option(metavar="A,B", help="evaluate on these environments only", show_default="all of the settings")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, max=100, help="answers for each question", show_default="evaluate.samples")
    ] = None,
    questions: Annotated[
        int | None, typer.Option(min=1, help="questions of each environment, from the first", show_default="evaluate.questions")
    ] = None,
    mode: Annotated[
        Literal["agent", "direct", "vote"] | None,
        typer.Option(
            help="the notebook agent; direct answers without a notebook; or the agent's answer that most samples give",
            show_default="evaluate.mode",
        ),
    ] = None,
    judge: Annotated[
        str,
        typer.Option(
            metavar="URL", help="let a model behind this server grade the answers to questions of files", show_default=False
        ),
    ] = "",
    judge_model: Annotated[str, typer.Option(metavar="NAME", help="the server's name of that model", show_default=False)] = "",
    judge_key_env: Annotated[str, typer.Option(metavar="NAME", help=f"{KEY}--judge", show_default=False)] = "",
    name: Annotated[
        str | None, typer.Option(help="name of the evaluation", show_default="made of the model and all that decides the result")
    ] = None,
    home: Home = None,
    root: Root = None,
    set_: Set = None,
    take_over: TakeOver = False,
    trust: Trust = False,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="write the answers as a table, one row each")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="check everything, print the plan and exit")] = False,
) -> None:
    """Evaluate a model on held-out questions: success, pass@k and F1 with intervals; every answer is kept.

    An evaluation that was stopped goes on by the same command.
    """
    from nbrl.flows.evaluation_plan import done, planned
    from nbrl.flows.evaluation_request import EvaluationRequest
    from nbrl.infra.storage import Storage
    from nbrl.tasks.environments.addresses import meant
    from nbrl.tasks.environments.tables import read_rows
    from nbrl.tasks.errors import ConfigError
    from nbrl.tasks.evaluation.csv_file import beside, check_csv, write_csv
    from nbrl.tasks.evaluation.question_file import columns_in, is_question_file
    from nbrl.tasks.layout.runs import EvaluationLayout
    from nbrl.tasks.runs.lease import holder_to_stop

    for option, given in (("--model", model), ("--name", name)):
        if given is not None and not given.strip():
            raise ConfigError(f"{option} is empty; give it a value, or leave it out")
    if csv is not None:
        check_csv(csv)
    named = tuple(part.strip() for part in environments.split(",") if part.strip()) if environments is not None else ()
    if environments is not None and not named:
        raise ConfigError(f"--environments {environments!r} names no environment; name one, or leave it out for all")

    more = {"environments": named, "columns": columns_in(columns) if columns else {}, "root": root_at(home, root)}
    more |= {"overrides": tuple(overrides_of(home, set_))}
    plan = planned(request_of(context, EvaluationRequest, **more), trust)
    if dry_run:
        _print_plan(plan)
        return
    on_stop(lambda: f"the same command goes on with evaluation {plan.name}")

    if (summary := done(plan)) is None:
        holder_to_stop(Storage(plan.config.storage), EvaluationLayout(plan.name), take_over)  # before Ray is started
        summary = _evaluated(plan, take_over)
    if csv is not None:
        answers = Storage(plan.config.storage).read_table(EvaluationLayout(plan.name).answers)
        own = read_rows(meant(recipe)) if is_question_file(recipe) else None
        write_csv(answers.to_pylist() if own is None else beside(answers, plan.questions(), own), csv)
    _print(summary, as_json, root_flag(plan.config))


def _evaluated(plan: Any, take_over: bool) -> Any:
    if plan.in_process:
        from nbrl.flows.evaluating import evaluate_here
        from nbrl.tasks.evaluation.deliver import has_mlflow

        summary = asyncio.run(cancel_on_term(lambda: evaluate_here(plan, take_over)))
        if not has_mlflow(plan.config):
            say(f"`nbrl track {plan.name}{home_flag(plan.config)}` delivers it to MLflow; {plan.config.home} has none yet")
        return summary

    async def flow() -> Any:
        from nbrl.flows.evaluate import evaluate as flow

        return await flow(plan, take_over)

    return run_flow(plan.config.home, flow, plan.config.ray)


def _print_plan(plan: Any) -> None:
    from nbrl.flows.display.evaluation import described
    from nbrl.tasks.runs.preflight import rehearse
    from nbrl.tasks.runs.warnings import review, warnings_of

    served, config = plan.subject.server is not None, plan.config
    unchecked = rehearse(config, "evaluate a server" if served else "evaluate")
    for warning in (review if served else warnings_of)(plan.start):
        say(f"warning: {warning}", "yellow")
    at_once = config.rollout.episodes_per_runner
    where = f"in this process, {at_once} at once" if plan.in_process else f"on Ray, {config.rollout.runners} × {at_once} at once"
    text = described(plan.name, plan.subject.name, config, plan.questions(), plan.trajectories, where)
    out.print(text, markup=False, highlight=False, soft_wrap=True)
    for note in unchecked:
        say(f"not checked: {note}", "yellow")


def _print(summary: Any, as_json: bool, flag: str) -> None:
    from nbrl.flows.display.evaluation import footnotes, scores

    if as_json:
        print(summary.model_dump_json())
        return
    out.print(scores(summary), crop=False)
    out.print(footnotes(summary), highlight=False)
    out.print(f"nbrl show {summary.name}{flag}", highlight=False, soft_wrap=True)
