"""Write prefect.yaml from the deployments that `nbrl deploy` registers, so that the file cannot drift from the code.

Usage: python docs/deployments.py
"""

import json
from pathlib import Path

import prefect
import yaml
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import RunnerDeployment

from nbrl.flows import deployed
from nbrl.flows.deployed import PrepareOrder, TrainOrder
from nbrl.flows.deployments import SLUG, DeployOptions, deployment, deployments_of
from nbrl.flows.nightly import NightlyOrder
from nbrl.infra import prefect_server

FILE = Path(__file__).parent.parent / "prefect.yaml"
HEAD = """\
# Deployments of nbrl for `prefect deploy --all`, to be edited; first `prefect work-pool create nbrl --type process`. The command
# `nbrl deploy` registers the same ones from its options, checks them first, and makes the pool and the
# automations, for which this file has no place. docs/schedule.md explains them. Written by docs/deployments.py.
"""


def deployments() -> dict[str, RunnerDeployment]:
    """Return an example of each deployment, by what it is for."""
    train, evaluate, clean = deployments_of(DeployOptions(run="my-run", recipe="tiny-cpu", cron="0 */6 * * *"))
    prepare = PrepareOrder(recipe=Path("examples/prepare/recipe.yaml"), folder=Path("prepared"))
    return {
        "the form asks for the run and the recipe": deployment(
            deployed.train, "by-hand", TrainOrder(run="my-run", recipe="tiny-cpu")
        ),
        "continues this run until its iterations are done": train,
        "its newest checkpoint, every night; one that was evaluated already is found": evaluate,
        "makes questions to train on": deployment(deployed.prepare, "questions", prepare),
        "learns every night from questions of one's own use": deployment(
            deployed.nightly, "mine", NightlyOrder(recipe=Path("examples/nightly/nightly.yaml"))
        ),
        "applies the retention of all runs": clean,
    }


def declared(each: RunnerDeployment) -> dict[str, object]:
    """Return a deployment as prefect.yaml declares it."""
    crons = [one.schedule.cron for one in each.schedules or [] if isinstance(one.schedule, CronSchedule)]
    assert each.concurrency_options
    return {
        "name": each.name,
        "entrypoint": f"flows/deployed.py:{each.flow_name}",
        "tags": each.tags,
        "parameters": each.parameters,
        **({"schedules": [{"cron": cron, "slug": SLUG} for cron in crons]} if crons else {}),
        "concurrency_limit": {"limit": 1, "collision_strategy": each.concurrency_options.collision_strategy.value},
    }


def page() -> str:
    """Return the text of the file."""
    variables = yaml.safe_dump(prefect_server.CLIENT, sort_keys=False).replace("\n", "\n    ").rstrip()
    lines = [f"{HEAD}name: nbrl", f"prefect-version: {prefect.__version__}", "", "definitions:"]
    lines += [
        "  # What Prefect reads when it is imported, before any code of nbrl.",
        f"  environment: &environment\n    {variables}",
    ]
    lines += ["  pool: &pool", "    name: nbrl", "    job_variables: {env: *environment}", "", "deployments:"]
    for purpose, each in deployments().items():
        lines.append(f"  - # {purpose}")
        lines += [f"    {key}: {json.dumps(value)}" for key, value in declared(each).items()]
        lines.append("    work_pool: *pool")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
