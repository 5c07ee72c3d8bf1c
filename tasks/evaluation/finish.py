"""Writes what a finished evaluation leaves on the storage: answers, report, and last the summary."""

import time

import pyarrow as pa

from nbrl.infra.storage import Storage
from nbrl.tasks.environments import stored
from nbrl.tasks.evaluation.answers import answers_in
from nbrl.tasks.evaluation.report import markdown
from nbrl.tasks.evaluation.scores import metrics, scores
from nbrl.tasks.evaluation.subject import Subject
from nbrl.tasks.evaluation.summary import EvaluationSummary
from nbrl.tasks.layout.runs import EvaluationLayout
from nbrl.tasks.layout.stages import is_trajectories
from nbrl.tasks.rollout.index import blocks_of, in_order, places_of
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.scope import Artifact


def finish(
    storage: Storage, layout: EvaluationLayout, config: RunConfig, subject: Subject, result: Artifact, seconds: float
) -> EvaluationSummary:
    """Write answers, report and summary of an evaluation whose node made `result`; returns the summary."""
    trajectories = next(filter(is_trajectories, result.parts))
    index = places_of(storage, trajectories, result.parts[trajectories])
    rewards, questions = storage.read_table(result.path, result.digest), stored.read(storage, layout.data, "held_out")
    tables = [answers_in(block, storage, rewards, questions) for block in blocks_of(index)]
    answers = in_order(pa.concat_tables(tables), index["id"].to_pylist(), "trajectory")
    found, mode = scores(answers), config.evaluate.mode
    storage.write_table(layout.answers, answers)
    summary = EvaluationSummary(
        name=layout.name,
        recipe=config.name,
        subject=subject,
        mode=mode,
        samples=config.evaluate.samples,
        environments=list(config.environments),
        metrics=metrics(found, mode),
        scores=found,
        trajectories=len(answers),
        sampled_tokens=sum(answers["sampled_tokens"].to_pylist()),
        failed=int(result.values["failed"]),
        unscored=int(result.values["unscored"]),
        seconds=seconds,
        processor_seconds=result.values.get("cpu/evaluate", 0.0),
        gpu_seconds=0.0 if subject.server else result.values.get("gpu/evaluate", 0.0),
        finished=time.time(),
    )
    storage.write_bytes(layout.report, markdown(summary, storage.uri(layout.answers)).encode())
    storage.write_json(layout.summary, summary.model_dump(mode="json"))
    return summary
