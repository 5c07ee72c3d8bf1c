"""The outer loop of one run: iterations between two evaluations."""

from prefect import flow

from nbrl.flows.iterate import iterate
from nbrl.flows.watch import Watch
from nbrl.tasks.nodes.evaluate import evaluate
from nbrl.tasks.nodes.summarise import summarise
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import Record, read_record, skipped_in_row
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Artifact
from nbrl.tasks.runs.summary import Summary, learned
from nbrl.tasks.services.services import Services
from nbrl.tasks.services.start import training_services


@flow(name="train", validate_parameters=False, flow_run_name="{run.name}")
async def train(config: RunConfig, run: Run, watch: Watch) -> Summary:
    """Evaluate, iterate, evaluate. What finished in an earlier attempt of this run is found, not done again.

    Raises NothingLearnedError when no iteration made an update.
    """
    async with training_services(config, run, watch) as services:
        services.warn = watch.say
        records = list[Record]()
        first = last = await _evaluate(services, run, records, watch)
        evaluated = 0  # updates
        while len(records) < config.iterations and skipped_in_row(records) < config.select.patience:
            records.append(await _iterate(services, run, records, watch))
            due = config.evaluate.every and len(records) % config.evaluate.every == 0
            if due and evaluated < records[-1].updates:
                last, evaluated = await _evaluate(services, run, records, watch), records[-1].updates
        if records and evaluated < records[-1].updates:
            last = await _evaluate(services, run, records, watch)
        return learned(await summarise(services, run, first, last, records))


async def _iterate(services: Services, run: Run, records: list[Record], watch: Watch) -> Record:
    """The next iteration after `records`, or what is left of it where it happened already."""
    scope = run.scope(len(records), records[-1].updates if records else 0)
    done = read_record(services.storage, scope)
    if done is None:
        watch.begin(f"{run.name}: iteration {scope.iteration + 1} of {services.config.iterations}")
        done = await iterate(services, scope, records[-1].cursor if records else 0, watch)
        _tell([*records, done], services.config.select.patience, watch)
    return done


async def _evaluate(services: Services, run: Run, records: list[Record], watch: Watch) -> Artifact:
    updates = records[-1].updates if records else 0
    watch.begin(f"{run.name}: evaluation after {updates} updates")
    scope = run.scope(updates, updates)
    result = await watch.node("evaluate", evaluate(services, scope), services.evaluation_size, services.follow)
    services.tracking.log_metrics({f"eval/{key}": value for key, value in result.metrics.items()}, len(records))
    watch.say(f"evaluation after {updates:3d} updates   EM {result.metrics['em']:.3f}   F1 {result.metrics['f1']:.3f}")
    return result


def _tell(records: list[Record], patience: int, watch: Watch) -> None:
    record = records[-1]
    metrics = record.metrics
    line = (
        f"iteration {record.iteration + 1:3d}   reward {metrics['reward/total']:.3f}   EM {metrics['reward/em']:.3f}   "
        f"{metrics['rollout/trajectories']:.0f} trajectories   "
    )
    if record.skipped:
        watch.say(f"{line}nothing learned: {record.skipped} ({skipped_in_row(records)} of at most {patience} in a row)")
        return
    watch.say(
        f"{line}mismatch {metrics['mismatch/logprob_max_abs']:.1e}   "
        f"{metrics['time/iteration']:.1f} s (overhead {metrics['time/overhead_share']:.0%})"
    )
