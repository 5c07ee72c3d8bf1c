"""Tasks of reasoning-gym, scored by the answer that nbrl's agent submitted."""

from collections.abc import Iterator

import reasoning_gym
import verifiers.v1 as vf

__all__ = ["GymTaskset"]


class GymConfig(vf.TasksetConfig):
    dataset: str = "gcd"  # one with a single right answer, for answers are compared as text
    size: int = 4
    seed: int = 0


class GymData(vf.TaskData):
    answer: str


class GymTask(vf.Task[GymData]):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        return float(str(trace.info.get("answer")).strip() == self.data.answer)


class GymTaskset(vf.Taskset[GymTask, GymConfig]):
    def load(self) -> Iterator[GymTask]:
        for item in reasoning_gym.create_dataset(self.config.dataset, size=self.config.size, seed=self.config.seed):
            yield GymTask(GymData(prompt=item["question"], answer=item["answer"]), self.config.task)
