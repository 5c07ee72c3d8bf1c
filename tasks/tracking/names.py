"""The names that metrics have in MLflow and in other sinks: a group that is looked at first, and one for experts."""

from collections.abc import Collection, Mapping

# Pages sort groups and metrics by name, so that `main` comes before `more`, and held-out success is the first of all.
MAIN = {
    "eval/success": "main/held_out_success",
    "reward/success": "main/success",
    "reward/total": "main/reward",
    "update/entropy": "main/update_entropy",
    "update/kl": "main/update_kl",
    "update/grad_norm": "main/update_grad_norm",
    "mismatch/logprob_mean_abs": "main/mismatch",
    "rollout/sampled_tokens": "main/tokens",
    "time/iteration": "main/seconds",
}
MORE = "more/"


def shown(metrics: Mapping[str, float], environments: Collection[str]) -> dict[str, float]:
    """Return the metrics of a record or an evaluation by the names that they are shown by, first those of `main`.

    Pages open on what was logged first. Of the values of environments and abilities only success is shown; the storage has all.
    """
    found = {shown_name(name): value for name, value in metrics.items() if not _is_part(name, environments)}
    return {name: found[name] for name in MAIN.values() if name in found} | found


def shown_name(name: str) -> str:
    return MAIN.get(name, MORE + name)


def _is_part(name: str, environments: Collection[str]) -> bool:
    """Return whether a metric is that of an environment or an ability, and not its success."""
    parts = name.split("/")
    place = 3 if name.startswith("rollout/status/") else 2
    return len(parts) > place and parts[place] in environments and parts[place - 1] != "success"
