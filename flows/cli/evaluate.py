"""`nbrl evaluate`."""

from typing import Annotated, Any

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.guard import guard
from nbrl.flows.cli.interrupt import Importing
from nbrl.flows.cli.options import Recipe, Set, root_flag
from nbrl.flows.cli.run_flow import run_flow
from nbrl.flows.display.terminal import out


def evaluate(
    recipe: Recipe,
    run: Annotated[
        str | None,
        typer.Option(help="evaluate a checkpoint of this run instead of the recipe's policy", autocompletion=completion.runs),
    ] = None,
    checkpoint: Annotated[int | None, typer.Option(help="number of updates of the checkpoint; by default the newest")] = None,
    name: Annotated[str | None, typer.Option(help="name of the evaluation; by default made of recipe and time")] = None,
    set_: Set = None,
) -> None:
    """Evaluate a policy on the recipe's held-out questions: exact match and F1, and keep all trajectories."""
    begun: list[str] = []

    def stopped() -> str:
        return f"evaluation {begun[0]} stays unfinished; evaluate again under another --name" if begun else ""

    def work() -> None:
        with Importing():
            from nbrl.infra.storage import Storage
            from nbrl.tasks.errors import ConfigError
            from nbrl.tasks.runs.checkpoints import checkpoint as find_checkpoint
            from nbrl.tasks.runs.preflight import prepared
            from nbrl.tasks.runs.run import checked_name, new_name

        if checkpoint is not None and run is None:
            raise ConfigError("--checkpoint names a checkpoint of a run; give --run too")
        config = prepared(recipe, set_ or [], "evaluate")
        source = None if run is None else checked_name(run)
        if source is not None:
            find_checkpoint(Storage(config.storage), source, checkpoint)
        evaluation = checked_name(new_name(source or config.name) if name is None else name)

        async def flow() -> Any:
            from nbrl.flows.evaluate import evaluate as flow

            return await flow(config, source, checkpoint, evaluation)

        begun.append(evaluation)
        for metric, value in sorted(run_flow(config.home, flow).items()):
            out.print(f"{metric:20} {value:.6g}", highlight=False)
        out.print(f"nbrl show {evaluation}{root_flag(config)}", highlight=False, soft_wrap=True)

    guard(work, stopped)
