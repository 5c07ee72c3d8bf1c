"""The outer loop of one run: iterations between two evaluations."""

from prefect import flow

from flows.iterate import iterate
from flows.watch import Watch
from tasks.config import RunConfig
from tasks.evaluate import evaluate, evaluation_folder
from tasks.outcome import Summary
from tasks.parts import Parts
from tasks.record import Record, read_record
from tasks.run import Run
from tasks.scope import Artifact
from tasks.start import training_parts
from tasks.summary import summarise


@flow(name="train", validate_parameters=False, flow_run_name="{run.name}")
async def train(config: RunConfig, run: Run, watch: Watch) -> Summary:
    """Evaluate, iterate, evaluate. What finished in an earlier attempt of this run is found, not done again."""
    async with training_parts(config, run, watch) as parts:
        parts.warn = watch.say
        first = await _evaluate(parts, run, 0, watch)
        records = list[Record]()
        last = first
        for iteration in range(config.iterations):
            scope = run.scope(iteration)
            done = read_record(parts, scope)
            if done is None:
                watch.begin(f"{run.name}: iteration {iteration + 1} of {config.iterations}")
                done = await iterate(parts, scope, records[-1].cursor if records else 0, watch)
                if done is None:
                    watch.say(f"iteration {iteration + 1}: every group is all right, all wrong or failed; nothing left to learn")
                    break
                _tell(done, watch)
            records.append(done)
            if config.evaluate.every and len(records) % config.evaluate.every == 0:
                last = await _evaluate(parts, run, len(records), watch)
        if records and last.path != evaluation_folder(run.scope(len(records))):
            last = await _evaluate(parts, run, len(records), watch)
        return await summarise(parts, run, first, last, records)


async def _evaluate(parts: Parts, run: Run, updates: int, watch: Watch) -> Artifact:
    scope = run.scope(updates)
    watch.begin(f"{run.name}: evaluation after {updates} updates")
    result = await watch.node("evaluate", evaluate(parts, scope), parts.evaluation_size, parts.follow)
    parts.tracking.log_metrics({f"eval/{key}": value for key, value in result.metrics.items()}, updates)
    watch.say(f"evaluation after {updates:3d} updates   EM {result.metrics['em']:.3f}   F1 {result.metrics['f1']:.3f}")
    return result


def _tell(record: Record, watch: Watch) -> None:
    metrics = record.metrics
    watch.say(
        f"iteration {record.iteration + 1:3d}   reward {metrics['reward/total']:.3f}   EM {metrics['reward/em']:.3f}   "
        f"{metrics['rollout/trajectories']:.0f} trajectories   mismatch {metrics['mismatch/logprob_max_abs']:.1e}   "
        f"{metrics['time/iteration']:.1f} s (overhead {metrics['time/overhead_share']:.0%})"
    )
