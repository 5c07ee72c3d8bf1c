"""The report in the terminal at the end of a run."""

from rich.console import Group, RenderableType
from rich.table import Table

from nbrl.tasks.runs.summary import Summary

NODES = ("sample", "rollout", "reward", "select", "advantage", "update", "publish", "record")
BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[float]) -> str:
    """Values in [0, 1] as a row of bars."""
    return "".join(BARS[min(len(BARS) - 1, int(value * len(BARS)))] for value in values)


def report(summary: Summary) -> RenderableType:
    scores = Table("", "before", "after", title="held-out questions", title_justify="left")
    names = {"success": "success", "em": "exact match", "f1": "F1"}
    known = sorted({*summary.before, *summary.after})
    names |= {key: f"  {key.removeprefix('success/')}" for key in known if key.startswith("success/")}
    for key, name in names.items():
        scores.add_row(name, *(f"{values[key]:.3f}" if key in values else "–" for values in (summary.before, summary.after)))
    times = Table("node", "seconds", "per iteration", title="where the time went", title_justify="left")
    for node in NODES:
        seconds = summary.seconds.get(node, 0.0)
        times.add_row(node, f"{seconds:.1f}", f"{seconds / max(1, summary.iterations):.2f}")
    times.add_row("all", f"{summary.seconds.get('iteration', 0.0):.1f}", f"overhead {summary.overhead_share:.0%}")
    return Group(scores, times)


def closing(summary: Summary, root: str, home: str) -> str:
    """The figures in one sentence, and the next commands with the options `root` and `home`, which must not be wrapped."""
    stalled = f"the run ended early: {summary.stalled}\n" if summary.stalled else ""
    return (
        f"{stalled}"
        f"{summary.iterations} iterations, {summary.trajectories} trajectories, {summary.sampled_tokens} sampled tokens; "
        f"engine and trainer differ by at most {summary.mismatch_max:.1e} nats\n"
        f"learning curve  {sparkline(summary.curve)}  {summary.curve_path}\n"
        f"a trajectory    nbrl show {summary.example}{root}\n"
        f"the pages       nbrl ui{home}    (MLflow and Prefect)"
    )
