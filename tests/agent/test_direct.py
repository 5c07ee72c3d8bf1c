import asyncio
import time

import pytest

from nbrl.agent.direct import PROMPT, DirectEpisode, read_answer
from nbrl.agent.episode import Task
from nbrl.agent.errors import PolicyError
from nbrl.agent.messages import Prompt
from nbrl.agent.policy import Generation
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.estimated import EstimatingRenderer
from nbrl.agent.trajectory import Status, Trajectory

TASK = Task(id="q-0", group="q", sample=0, question="What is six times seven?", ability="qa", seed=3, instruction="Use digits.")


class Says:
    """A policy that says one text, and remembers the prompt."""

    def __init__(self, text: str, finish: str = "stop", wait_s: float = 0.0) -> None:
        self._text, self._finish, self._wait_s = text, finish, wait_s
        self.prompts: list[Prompt] = []

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        self.prompts.append(prompt)
        await asyncio.sleep(self._wait_s)
        finish = "length" if self._finish == "length" else "stop"
        return Generation([-1] * 4, [0.0] * 4, "v", finish, self._text)


class Broken:
    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        raise PolicyError("the server is gone")


def ask(policy: Says | Broken, **settings: object) -> Trajectory:
    agent = AgentSettings.model_validate({"context_tokens": 2000, "action_tokens": 100, **settings})
    return asyncio.run(DirectEpisode(TASK, policy, EstimatingRenderer(), agent).run())


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Six sevens are\nAnswer: 42", "42"),
        ("<think>Answer: 41</think>\nAnswer: 42\n", "42"),
        ("**Answer:** Paris.", "Paris."),
        ("**Answer**: **42**", "42"),
        ("- **Final Answer**: *Hamlet*", "Hamlet"),
        ("*Answer*: 2**3", "2**3"),
        ("Answer: 1\nno,\nanswer : 2", "2"),
        ("Answer:\n\n42", "42"),
        (r"so it is \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"so it is \boxed{\frac{\sqrt{5}}{4}}, not \boxed{", r"\frac{\sqrt{5}}{4}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"Answer: the sum is $\boxed{17}$.", "17"),
        (r"Answer: \(17\)", "17"),
        ("Answer: **17**.", "17"),
        ("**Answer: 17**", "17"),
        ("*Answer: 17.*", "17."),
        ("Answer: __init__", "__init__"),
        ("Answer: C*", "C*"),
        ("Answer: *args", "*args"),
        ("- Answer: 17", "17"),
        ("3. Answer: 17", "17"),
        ("Answer：17", "17"),
        ("## Answer\n\n17", "17"),
        ("**Final answer**\n17", "17"),
        ("Answer: $5 and $6", "$5 and $6"),
        ("### **Final answer:** `x = 3`", "x = 3"),
        ("The final answer is:\n\n$$17$$", "17"),
        ("I do not know of any other answer: none", "I do not know of any other answer: none"),
        (r"so it is \fbox{17} or $\fbox {\text{18}}$", r"\text{18}"),
        (r"\boxed{\fbox{17}}", r"\fbox{17}"),
        ("Answer: 17\nAnswer:", "17"),
        *((mark, None) for mark in ("Answer:", "It is odd.\n**Final answer:**", "Answer: **", "- Answer：\n")),
        ("Paris", "Paris"),
        ("<think>long</think>", None),
        ("  ", None),
    ],
)
def test_an_answer_is_what_stands_after_the_last_mark(text: str, answer: str | None) -> None:
    assert read_answer(text) == answer


@pytest.mark.timeout(60)
def test_an_answer_that_is_mostly_blank_lines_is_read_at_once() -> None:
    said = "a" + "\n" * 200_000 + "b"
    assert read_answer(said) == said


def test_a_direct_answer_is_a_trajectory_of_one_step_without_a_cell() -> None:
    policy = Says("Answer: 42")
    done = ask(policy)
    assert (done.status, done.answer, len(done.steps), done.steps[0].code) == (Status.ANSWERED, "42", 1, "")
    assert [node.kind for node in done.nodes] == ["system", "task", "sampled"]
    system, user = policy.prompts[0].messages
    assert system.text == f"{PROMPT}\nUse digits."
    assert user.text == TASK.question


def test_an_answer_that_was_cut_off_is_none() -> None:
    done = ask(Says("Answer: 4", "length"))
    assert (done.status, done.answer) == (Status.TOKEN_LIMIT, None)


def test_a_question_without_room_is_not_asked() -> None:
    tiny = Says("Answer: 42")
    task = Task(id="q-0", group="q", sample=0, question="long " * 2000, ability="qa", seed=0)
    done = asyncio.run(DirectEpisode(task, tiny, EstimatingRenderer(), AgentSettings(context_tokens=200, action_tokens=50)).run())
    assert done.status is Status.TOKEN_LIMIT
    assert not tiny.prompts


def test_a_model_that_does_not_answer_in_time_is_stopped() -> None:
    began = time.monotonic()
    assert ask(Says("Answer: 42", wait_s=60), deadline_s=0.05).status is Status.TIMEOUT
    assert time.monotonic() - began < 30


def test_a_fault_of_the_server_is_a_failed_trajectory() -> None:
    done = ask(Broken())
    assert (done.status, done.failure) == (Status.FAILED, "the server is gone")
