"""The model card of a published run, in the format of the Hugging Face hub: figures with intervals, and how to verify them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.results import NodeResult
from nbrl.tasks.runs.run import Run

WORDS = {
    "weights": "the whole model, in `weights/`",
    "adapters": "what LoRA trained, in peft's format, in `weights/`",
    "none": "none",
}


def card(run: Run, records: Sequence[Record], results: Iterable[NodeResult], parts: str) -> str:
    """Return the text of README.md; `parts` are the weights that come along."""
    newest, by_updates = records[-1], {each.inputs[0]: each.artifact.values for each in results}
    before, after = by_updates.get(run.policy), by_updates.get(newest.weights)
    rows = [_row("before", before), _row(f"after {newest.updates} updates", after)]
    # Of artifacts which the audit counts again.
    sampled = [each.values for record in records for each in (*(round_.trajectories for round_ in record.rounds), *record.trunks)]
    tokens, trajectories = (sum(values[f"rollout/{name}"] for values in sampled) for name in ("sampled_tokens", "trajectories"))
    lines = [
        f"---\n{yaml.safe_dump(_front(run, after), sort_keys=False)}---\n",
        f"# {run.name}\n",
        f"A notebook agent, trained by reinforcement learning with nbrl: recipe `{run.recipe}`, seed {run.seed}, "
        f"{len(records)} iterations, {newest.updates} updates, {trajectories:.0f} trajectories of {tokens:.0f} sampled tokens.\n",
        "| held-out questions | success | 95 % interval | questions |\n|---|---|---|---|",
        *rows,
        "\nIntervals are Wilson's, over questions. Environments: " + ", ".join(f"`{name}`" for name in run.environments) + ".\n",
        f"Weights: {WORDS[parts]}; the digest of the newest ones is `{newest.weights}`.\n",
        "## Verify it\n",
        "This folder holds what the run recorded: questions, trajectories with every token's log-prob, rewards, selections, "
        "advantages, and the order of each update. Nothing in it is executed:\n",
        "```bash\nnbrl audit .                # every digest, and all that can be computed again\n"
        "nbrl audit . --replay 1     # and the first update, bit for bit, on a CPU\n```\n",
        "`bundle.json` lists all files with their SHA-256, and one root over them; `bundle.json.sig`, where there is one, is a "
        "signature of that list by an SSH key: `nbrl audit . --signed-by KEY.pub`.",
    ]
    return "\n".join(lines) + "\n"


def _front(run: Run, after: Mapping[str, float] | None) -> dict[str, Any]:
    """Return the metadata that the hub reads."""
    front: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["nbrl", "reinforcement-learning", "notebook-agent"],
    }
    if after and "success" in after:
        metric = {"type": "accuracy", "name": "success on held-out questions", "value": round(after["success"], 4)}
        task, dataset = {"type": "text-generation"}, {"name": ", ".join(run.environments), "type": run.recipe}
        front["model-index"] = [{"name": run.name, "results": [{"task": task, "dataset": dataset, "metrics": [metric]}]}]
    return front


def _row(when: str, values: Mapping[str, float] | None) -> str:
    if not values or "success" not in values:
        return f"| {when} | not measured | | |"
    low, high = values.get("success_low", 0.0), values.get("success_high", 1.0)
    return f"| {when} | {values['success']:.3f} | {low:.3f} to {high:.3f} | {values.get('questions', 0):.0f} |"
