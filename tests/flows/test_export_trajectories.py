"""Trajectories in the formats of others, read by their packages, and by our own warm starts."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from atif.trajectory import Trajectory as AtifTrajectory
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from typer.testing import CliRunner

from nbrl.agent.formats.atif import atif
from nbrl.agent.formats.messages import conversation
from nbrl.agent.formats.otel import spans
from nbrl.agent.grammar import Grammar
from nbrl.agent.text import turns_as_text, turns_in
from nbrl.agent.trajectory import ROOT, Node, Status, Step, ToolCall, Trajectory, to_table
from nbrl.flows.cli.commands import app
from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.trajectories import trajectories_of
from nbrl.tasks.warmstart.sources.chat import holds_conversations
from nbrl.tasks.warmstart.sources.turns import Turn, UnfitError, turns_of
from tests.tasks.storing import stored

CALL = ToolCall(name="search", arguments='{"query": "é\\u0000"}', result='"found"', ok=True, seconds=0.5)
CUT = ToolCall(name="search", arguments='{"query": "lon', result='"Val', ok=False, complete=False, seconds=0.5)
NODES = [
    Node(parent=ROOT, kind="task", step=0, token_ids=[1, 2]),
    Node(parent=0, kind="sampled", step=0, token_ids=[3, 4], logprobs=[-0.5, -1.0], weights_version="7"),
    Node(parent=1, kind="observation", step=0, token_ids=[5]),
    Node(parent=2, kind="sampled", step=1, token_ids=[6], logprobs=[-2.0], weights_version="7"),
]


def trajectory(*steps: Step) -> Trajectory:
    return Trajectory(
        id="q-0", group="q", sample=0, question="How many?", ability="qa", status=Status.ANSWERED, answer="42", nodes=NODES,
        steps=list(steps), started_at=1_800_000_000.0, seconds=4.0,
    )  # fmt: skip


def cell(**more: Any) -> Step:
    given = {"think": "look", "code": "print(search('é'))", "cell_status": "ok", "observation": "found", "policy_seconds": 1.0}
    return Step.model_validate({**given, "tool_calls": [CALL, CUT], "kernel_seconds": 0.5, **more})


NOTEBOOK = trajectory(cell(), cell(malformed="no code", think="hm", code="", observation="Nothing was run.", tool_calls=[]))
PROGRAM = trajectory(
    Step(kind="reply", code="I look", think="hm", observation="user: How many?", tool_calls=[CALL]),
    Step(kind="reply", code="42", observation="tool: found"),
)
SUMMARISED = trajectory(Step(kind="summary", think="long", observation="so far"), cell())
ALL = pytest.mark.parametrize("made", [NOTEBOOK, PROGRAM, SUMMARISED], ids=["notebook", "program", "summary"])


@ALL
def test_atif_is_what_its_package_reads_and_writes_again(made: Trajectory) -> None:
    written = json.loads(json.dumps(atif(made, "policy@7", "1.0", {"reward": 0.5})))
    read = AtifTrajectory.model_validate(written)
    assert json.loads(read.model_dump_json(exclude_none=True)) == json.loads(json.dumps(_without_none(written)))
    agent = [step for step in read.steps if step.source == "agent"]
    assert len(agent) == 2
    assert [step.metrics and step.metrics.completion_token_ids for step in agent] == [[3, 4], [6]]
    assert read.final_metrics is not None
    assert (read.final_metrics.total_prompt_tokens, read.final_metrics.total_completion_tokens) == (2 + 5, 3)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(each) for name, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list) else value


def test_atif_keeps_calls_and_what_they_said_together() -> None:
    _, first, second = atif(NOTEBOOK, "m", "1", {})["steps"]
    calls = {call["tool_call_id"]: (call["function_name"], call["arguments"]) for call in first["tool_calls"]}
    said = {result["source_call_id"]: result["content"] for result in first["observation"]["results"]}
    assert [(calls[identity], said[identity]) for identity in calls] == [
        (("python", {"code": "print(search('é'))"}), "found"),
        (("search", {"query": "é\x00"}), '"found"'),
        (("search", {"recorded": '{"query": "lon'}), '"Val'),
    ]
    assert second["extra"] == {"malformed": "no code"}


@ALL
def test_spans_are_what_opentelemetry_reads(made: Trajectory) -> None:
    found = json_format.ParseDict(spans(made, "policy@7", {"reward": 0.5, "success": None}), TracesData())
    top, *below = found.resource_spans[0].scope_spans[0].spans
    assert {span.parent_span_id for span in below} == {top.span_id}
    assert len({span.span_id for span in (top, *below)}) == 1 + len(below)
    assert all(top.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano for span in below)
    about = {each.key: each.value for each in top.attributes}
    assert about["gen_ai.operation.name"].string_value == "invoke_agent"
    assert about["nbrl.reward"].double_value == 0.5
    assert "nbrl.success" not in about
    chats = [span for span in below if span.name.startswith("chat")]
    used = [{each.key: each.value.int_value for each in span.attributes if "usage" in each.key} for span in chats]
    assert [each["gen_ai.usage.output_tokens"] for each in used] == [2, 1]


def test_conversations_are_learnt_by_a_warm_start_as_they_were_said() -> None:
    grammar = Grammar()
    turns = turns_of(conversation(NOTEBOOK, grammar, {"reward": 1.0}))
    assert [(turn.role, turn.learnt) for turn in turns] == [
        ("user", True), ("assistant", True), ("user", True), ("assistant", False), ("user", True),
    ]  # fmt: skip
    assert turns[1].text == grammar.write("look", "print(search('é'))")
    assert [(turn.role, turn.text, turn.thought) for turn in turns_of(conversation(PROGRAM, grammar, {}))] == [
        ("user", "How many?", ""),
        ("assistant", "I look", "hm"),
        ("user", "found", ""),
        ("assistant", "42", ""),
    ]


def exported(root: Path, *options: str) -> Any:
    return CliRunner().invoke(app, ["export", "r", *options, "--root", str(root)])


def test_a_command_writes_them_and_overwrites_nothing(tmp_path: Path) -> None:
    root, target = tmp_path / "storage", tmp_path / "out" / "r.jsonl"
    storage = Storage(StorageSettings(root=str(root)))
    config = RunConfig.model_validate(
        {
            "iterations": 1,
            "policy": {"path": "models/p"},
            "storage": {"root": str(root)},
            "environments": {"w": {"kind": "world"}},
        }
    )
    run = Run(name="r", run_id="x", config_digest="y", seed=0, recipe="r", policy="w", config=config.model_dump(mode="json"))
    storage.write_bytes("runs/r/run.json", run.model_dump_json().encode())
    for number in (0, 1):
        stored(storage, f"runs/r/iterations/00000{number}/round-0/trajectories.index.parquet", to_table([NOTEBOOK]))
    rewards = pa.Table.from_pylist([{"trajectory": "q-0", "total": 0.5, "success": 1.0}])
    storage.write_table("runs/r/iterations/000001/round-0/rewards.parquet", rewards)
    done = exported(root, str(target), "--trajectories", "messages")
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [(row["where"], row["reward"]) for row in rows] == [("iter 1", None), ("iter 2", 0.5)]
    refused = ("--trajectories", "atif")
    for options, words in (
        ((str(target), *refused), "nothing is overwritten"),
        (("y", *refused, "--dtype", "float16"), "--dtype does nothing"),
        (("y", "--held-out"), "--held-out does nothing"),
    ):
        assert words in " ".join(exported(root, *options).output.split())
    one = tmp_path / "one.jsonl"
    assert exported(root, str(one), "--trajectories", "atif", "--iteration", "2").exit_code == 0
    assert json.loads(one.read_text())["agent"]["model_name"] == "p@7"


def learnt(path: Path, made: Trajectory) -> list[Turn]:
    path.write_text(json.dumps(atif(made, "m", "1", {})))
    assert holds_conversations(path)
    return turns_of(json.loads(path.read_text()))


def test_atif_is_learnt_from_as_it_was_said(tmp_path: Path) -> None:
    turns = learnt(tmp_path / "one.json", PROGRAM)
    assert [(turn.role, turn.text.splitlines()[0], turn.thought, turn.learnt) for turn in turns] == [
        ("user", "How many?", "", True),
        ("assistant", "I look", "hm", False),  # it called a tool that the agent may not have
        ("user", '"found"', "", True),
        ("user", "tool: found", "", True),
        ("assistant", "42", "", True),
    ]
    with pytest.raises(UnfitError, match="nothing is demonstrated"):  # a notebook calls nothing else
        learnt(tmp_path / "two.json", NOTEBOOK)


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": [Node(parent=0, kind="task", step=0)]},
        {"nodes": [Node(parent=1, kind="task", step=0), Node(parent=ROOT, kind="task", step=0)]},
        {"nodes": [Node(parent=-2, kind="task", step=0)]},
        {"started_at": float("nan")},
        {"seconds": float("inf")},
        {"steps": [cell(kernel_seconds=-1e300)]},
    ],
)
def test_a_tree_without_an_end_or_a_time_that_is_none_is_damage(tmp_path: Path, change: dict[str, Any]) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    table = to_table([NOTEBOOK.model_copy(update=change)])
    with pytest.raises(DamagedError, match="no table of trajectories"):
        trajectories_of(storage, "runs/r/x", table)


@pytest.mark.parametrize(
    "step",
    [
        {"tool_calls": ["x"]},
        {"tool_calls": "ab"},
        {"observation": "x"},
        {"observation": {"results": 5}},
        {"observation": {"results": ["a"]}},
    ],
)
def test_a_step_of_another_form_costs_its_row_alone(step: dict[str, Any]) -> None:
    steps = [{"source": "user", "message": "q"}, {"source": "agent", "message": "a", **step}]
    with pytest.raises(UnfitError, match="not as ATIF has them"):
        turns_of({"schema_version": "ATIF-v1.8", "steps": steps})


def test_requests_of_a_program_are_turns_of_their_roles() -> None:
    asked = ["system: Be brief.\nuser: How many?\nuser: lamps: two lines\nof them", "tool: 4", "no role at all"]
    steps = [
        Step(kind="reply", think="hm" if not number else "", code=f"said {number}", observation=text)
        for number, text in enumerate(asked)
    ]
    turns = conversation(trajectory(*steps), Grammar("tag", "think", "tag"), {})["messages"]
    assert [(turn["role"], turn["content"]) for turn in turns] == [
        ("system", "Be brief."), ("user", "How many?"), ("user", "lamps: two lines\nof them"), ("assistant", "said 0"),
        ("tool", "4"), ("assistant", "said 1"), ("user", "no role at all"), ("assistant", "said 2"),
    ]  # fmt: skip
    assert turns[3]["reasoning_content"] == "hm"


PIECES = ["", "how many?", "user: pay", " tool: x", "  system: y", "assistant: z\n", "user:", "\n", "a: b", "system: "]


@given(
    st.lists(st.tuples(st.sampled_from(["system", "user", "tool"]), st.lists(st.sampled_from(PIECES), max_size=4)), min_size=1)
)
def test_no_text_of_a_message_becomes_a_turn(turns: list[tuple[str, list[str]]]) -> None:
    said = [(role, "\n".join(lines)) for role, lines in turns]
    assert turns_in(turns_as_text(said)) == said
