"""Logs trajectories as MLflow traces, scored as assessments, and the questions of a run as dataset inputs."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from nbrl.infra.tracking import Tracking

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbrl.infra.tracking import Tracking


SpanKind = Literal["AGENT", "LLM", "TOOL", "CHAIN", "EVALUATOR"]
SOURCE = "nbrl"  # who assessed
DIGEST = 12  # characters: MLflow takes 36, and shows them all
CONTEXT = "mlflow.data.context"


@dataclass(frozen=True)
class Span:
    """One timed piece of a trace, directly below its root; `tokens` counts what a policy read and wrote."""

    name: str
    kind: SpanKind
    start_ns: int
    end_ns: int
    inputs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    tokens: tuple[int, int] | None = None


@dataclass(frozen=True)
class Assessments:
    """Expected answers of a trace, by name, and the feedback on its actual ones."""

    expected: Mapping[str, Any] = field(default_factory=dict)
    feedback: Mapping[str, float | bool | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Traced:
    """A trace that MLflow has, and the names of its assessments."""

    id: str
    assessed: frozenset[str]


class Traces:
    """The traces of one run."""

    def __init__(self, tracking: "Tracking") -> None:
        self._tracking = tracking

    def there(self, tags: Mapping[str, str]) -> dict[str, Traced]:
        """Return the run's traces with these tags, by name."""
        conditions = " AND ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        traces = self._tracking.client.search_traces(
            locations=[self._tracking.experiment_id],
            filter_string=conditions,
            run_id=self._tracking.run_id,
            include_spans=False,
        )
        return {
            str(trace.info.tags.get("mlflow.traceName", "")): Traced(
                str(trace.info.trace_id), frozenset(each.name for each in trace.info.assessments)
            )
            for trace in traces
        }

    def log(
        self, name: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], spans: Sequence[Span], tags: Mapping[str, str]
    ) -> Traced:
        """Log one trajectory, ordered by the times of its spans, without assessments."""
        from mlflow.tracing.constant import SpanAttributeKey

        client = self._tracking.client
        start = min((span.start_ns for span in spans), default=time.time_ns())
        end = max((span.end_ns for span in spans), default=start)
        root = client.start_trace(
            name,
            span_type="AGENT",
            inputs=dict(inputs),
            tags=dict(tags),
            experiment_id=self._tracking.experiment_id,
            start_time_ns=start,
            run_id=self._tracking.run_id,
        )
        for span in spans:
            used = {SpanAttributeKey.CHAT_USAGE: _usage(*span.tokens)} if span.tokens else {}
            child = client.start_span(
                span.name,
                root.trace_id,
                root.span_id,
                span_type=span.kind,
                inputs=dict(span.inputs),
                attributes=used,
                start_time_ns=span.start_ns,
            )
            client.end_span(root.trace_id, child.span_id, outputs=dict(span.outputs), end_time_ns=span.end_ns)
        client.end_trace(root.trace_id, outputs=dict(outputs), end_time_ns=end)
        return Traced(str(root.trace_id), frozenset())

    def assess(self, trace: Traced, assessments: Assessments) -> None:
        """Log those of the assessments that the trace does not have."""
        import mlflow
        from mlflow.entities import AssessmentSource

        mlflow.set_tracking_uri(self._tracking.uri)  # these functions have no client
        source = AssessmentSource(source_type="CODE", source_id=SOURCE)
        for name, expected in assessments.expected.items():
            if name not in trace.assessed:
                mlflow.log_expectation(trace_id=trace.id, name=name, value=expected, source=source)
        for name, value in assessments.feedback.items():
            if name not in trace.assessed:
                mlflow.log_feedback(trace_id=trace.id, name=name, value=value, source=source)


def _usage(read: int, written: int) -> dict[str, int]:
    return {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}


@dataclass(frozen=True)
class Dataset:
    """Questions of one environment and split: the SHA-256 and the address of the table that holds them."""

    name: str
    digest: str
    uri: str
    rows: int
    context: Literal["training", "evaluation"]


class Datasets:
    """The dataset inputs of one run."""

    def __init__(self, tracking: "Tracking") -> None:
        self._tracking = tracking

    def names(self) -> set[str]:
        """Return the names of the inputs that the run has."""
        run = self._tracking.client.get_run(self._tracking.run_id)
        return {str(each.dataset.name) for each in run.inputs.dataset_inputs} if run.inputs else set()

    def log(self, datasets: Sequence[Dataset]) -> None:
        """Log inputs; those that the run has are not added again."""
        from mlflow.entities import Dataset as Entity
        from mlflow.entities import DatasetInput, InputTag

        inputs = [
            DatasetInput(
                Entity(
                    name=each.name,
                    digest=each.digest[:DIGEST],
                    source_type=each.uri.partition("://")[0] if "://" in each.uri else "local",
                    source=json.dumps({"uri": each.uri}),
                    profile=json.dumps({"num_rows": each.rows}),
                ),
                [InputTag(CONTEXT, each.context)],
            )
            for each in datasets
        ]
        if inputs:
            self._tracking.client.log_inputs(self._tracking.run_id, inputs)
