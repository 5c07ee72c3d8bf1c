"""`nbrl evaluate`."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.guard import on_stop
from nbrl.flows.cli.run_flow import run_flow
from nbrl.flows.cli.stored import Root, Set, TakeOver, Trust, request_of, root_flag
from nbrl.flows.display.terminal import out, plain

KEY = "environment variable that holds the key of the server of "


def evaluate(
    context: typer.Context,
    recipe: Annotated[
        str,
        typer.Argument(
            help="a recipe's name, or the path of a YAML file; may be left out to take the settings of the run of --model",
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
    root: Root = completion.ROOT,
    set_: Set = None,
    take_over: TakeOver = False,
    trust: Trust = False,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="write the answers as a table, one row each")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
) -> None:
    """Evaluate a model on held-out questions: success, pass@k and F1 with intervals; every answer is kept.

    An evaluation that was stopped goes on by the same command.
    """
    from nbrl.flows.evaluation_request import EvaluationRequest, done, planned
    from nbrl.infra.storage import Storage
    from nbrl.tasks.errors import ConfigError
    from nbrl.tasks.evaluation.csv_file import check_csv, write_csv
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

    plan = planned(request_of(context, EvaluationRequest, environments=named), trust)
    on_stop(lambda: f"the same command goes on with evaluation {plan.name}")

    async def flow() -> Any:
        from nbrl.flows.evaluate import evaluate as flow

        return await flow(plan, take_over)

    if (summary := done(plan)) is None:
        holder_to_stop(Storage(plan.config.storage), EvaluationLayout(plan.name), take_over)  # before Ray is started
        summary = run_flow(plan.config.home, flow, plan.config.ray)
    if csv is not None:
        write_csv(Storage(plan.config.storage).read_table(EvaluationLayout(plan.name).answers), csv)
    _print(summary, as_json, root_flag(plan.config))


def _print(summary: Any, as_json: bool, flag: str) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from nbrl.tasks.evaluation.answers import HOW, header, rows
    from nbrl.tasks.evaluation.statistics import about_intervals

    if as_json:
        print(summary.model_dump_json())
        return
    table = Table(box=SIMPLE, title=plain(f"{summary.subject.name}: {HOW[summary.mode]}"), title_justify="left")
    for column in header(summary):
        table.add_column(column, justify="left" if column == "questions" else "right", no_wrap=True)
    for row in rows(summary, brief=True):
        table.add_row(*map(plain, row))
    out.print(table, crop=False)
    failed = f"{summary.failed} failed for the infrastructure and are left out; " if summary.failed else ""
    unscored = f"{summary.unscored} could not be scored and count as wrong; " if summary.unscored else ""
    asked = summary.scores[0].questions if summary.scores else 0
    out.print(f"{failed}{unscored}{about_intervals(asked)}", highlight=False)
    out.print(f"nbrl show {summary.name}{flag}", highlight=False, soft_wrap=True)
