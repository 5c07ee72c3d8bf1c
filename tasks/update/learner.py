"""The learner: one rank of it. All ranks execute the same orders in the same sequence."""

# ruff: noqa: N806 - suffixes of tensor names are shapes

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from tasks.advantage.tables import ADVANTAGES_SCHEMA, REWARDS_SCHEMA
from tasks.update import checkpoint
from tasks.update.batch import Batch, MicroBatch, deal, read_batch, to_device
from tasks.update.critic import Critic
from tasks.update.errors import UpdateError
from tasks.update.folder import check_model
from tasks.update.known import Known, know
from tasks.update.minibatches import minibatches
from tasks.update.model import load_critic, load_sharded, stored_dtype
from tasks.update.objective import critic_loss, policy_loss
from tasks.update.orders import CANARY_TOKENS, UpdateOrder, UpdateResult
from tasks.update.rate import learning_rate
from tasks.update.scorer import Scorer
from tasks.update.settings import UpdateSettings
from tasks.update.tally import MISMATCH_MAX, Tally, over_steps
from tasks.update.targets import Targets, token_weights
from tasks.update.trainee import Trainee
from tasks.update.tree import chain

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
INITIAL = ""  # stands for the initial model where a checkpoint's identity would
Value = TypeVar("Value")


class Learner:
    """Holds the policy, its optimiser and, where the settings ask for them, the frozen reference and the critic, all sharded over
    the process group.

    The process group must be up. `execute` either gives a result, or raises UpdateError on every rank alike and can go on with
    the next order; any other exception means that the ranks may be out of step and the process must end.
    """

    def __init__(self, settings: UpdateSettings, model_path: str, device: torch.device) -> None:
        self._settings, self._model_path, self._device = settings, model_path, device
        self._dtype = DTYPES[settings.dtype]
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._mesh = init_device_mesh(device.type, (self._world,), mesh_dim_names=("data",))
        self._together(lambda: check_model(model_path))
        self._export_dtype = stored_dtype(model_path)
        self._reference: Scorer | None = None
        if settings.kl_coefficient > 0:
            self._reference = load_sharded(model_path, self._dtype, self._mesh).requires_grad_(False)
        self._critic: Critic | None = None
        self._seconds: dict[str, float] = {}
        self._begin()

    def _begin(self) -> None:
        """The initial models, and optimisers that have taken no step."""
        settings = self._settings
        torch.manual_seed(settings.seed + self._rank)
        self._policy = load_sharded(self._model_path, self._dtype, self._mesh)
        self._trainees = {checkpoint.STATE: Trainee(self._policy.lm, settings, self._rate, self._device)}
        if settings.critic is not None:
            self._critic = load_critic(self._model_path, self._dtype, self._mesh)
            rate = partial(learning_rate, peak=settings.critic.lr, warmup=settings.critic.warmup_steps)
            self._trainees[checkpoint.CRITIC] = Trainee(self._critic, settings, rate, self._device)
        self._holds: str | None = INITIAL  # checkpoint.identity of the state in memory

    def _rate(self, step: int) -> float:
        s = self._settings
        return learning_rate(step, s.lr, s.warmup_steps, s.lr_schedule, s.lr_decay_steps, s.lr_floor)

    def execute(self, order: UpdateOrder) -> UpdateResult:
        """Carry out an order, or answer it from its finished checkpoint."""
        self._seconds = {}
        started = time.perf_counter()
        with self._phase("read"):
            done = self._together(lambda: checkpoint.earlier_result(order))
            if done is not None:
                return done
            batch = self._together(lambda: self._read(order))
        with self._phase("load"):
            self._bring(order.checkpoint_in)
        known, metrics = self._know(batch, order)
        self._holds = None  # from here to the finished checkpoint, memory holds neither the old state nor a saved one
        trained, skipped = self._train(batch, known, order)
        metrics = trained | metrics
        canary = order.canary_token_ids or batch.canary_token_ids
        with self._phase("canary"):
            logprobs = self._canary(canary)
        out = order.checkpoint_out
        with self._phase("checkpoint"):
            self._on_first(lambda: checkpoint.clear_partial(out))
            for name, trainee in self._trainees.items():
                trainee.save(checkpoint.partial(out) / name)
        with self._phase("export"):
            self._export(checkpoint.partial(out) / checkpoint.HF)
        metrics |= {f"seconds/{name}": value for name, value in self._seconds.items()}
        metrics["seconds/total"] = time.perf_counter() - started
        metrics["update/tokens_per_second"] = batch.forest.tokens / metrics["seconds/total"]
        result = UpdateResult(
            iteration=order.iteration,
            metrics=metrics,
            checkpoint=out,
            canary_token_ids=canary,
            canary_logprobs=logprobs,
            skipped=skipped,
        )
        self._on_first(lambda: checkpoint.finish(out, result))
        self._holds = self._together(lambda: checkpoint.identity(out))
        return result

    def _read(self, order: UpdateOrder) -> Batch:
        if order.estimate is None and (self._settings.critic or self._settings.kl_in_reward):
            raise UpdateError(
                "a critic and a KL in the reward act before the estimator: give the order rewards and the estimator"
            )
        if order.estimate and order.estimate.with_critic != (self._settings.critic is not None):
            raise UpdateError(f"advantage.estimator {order.estimate.estimator} and update.critic do not fit together")
        schema = REWARDS_SCHEMA if order.estimate else ADVANTAGES_SCHEMA
        batch = read_batch(order.trajectories, order.advantages, CANARY_TOKENS, schema)
        config = self._policy.lm.config
        deepest = max(batch.forest.depth)
        if deepest > config.max_position_embeddings:
            raise UpdateError(f"a trajectory has {deepest} tokens, the model takes {config.max_position_embeddings}")
        highest = max(max(map(max, batch.forest.ids)), *(order.canary_token_ids or [0]))
        if highest >= config.vocab_size:
            raise UpdateError(f"token id {highest} is outside the model's vocabulary of {config.vocab_size}")
        return batch

    def _bring(self, checkpoint_in: str | None) -> None:
        """Make memory hold the state that the order starts from."""
        wanted = INITIAL if checkpoint_in is None else self._together(lambda: checkpoint.identity(checkpoint_in))
        if wanted == self._holds:
            return
        self._holds = None
        self._begin()
        if checkpoint_in is not None:
            for name, trainee in self._trainees.items():
                folder = Path(checkpoint_in) / name
                self._together(partial(_check_state, folder))
                trainee.load(folder)
        self._holds = wanted

    def _know(self, batch: Batch, order: UpdateOrder) -> tuple[Known, dict[str, float]]:
        """Forward whatever must be known of the whole batch before its first step; nothing by default."""
        settings = self._settings
        several = settings.steps_per_batch > 1
        wanted: dict[str, Scorer | Critic] = {}
        if settings.kl_in_reward or (several and not settings.engine_is_old):
            wanted["old"] = self._policy
        if self._reference is not None and (settings.kl_in_reward or several):
            wanted["reference"] = self._reference
        if self._critic is not None:
            wanted["value"] = self._critic
        found = {name: torch.zeros(batch.forest.targets, dtype=torch.float64, device=self._device) for name in wanted}
        for micro in self._micro_batches(batch, range(batch.examples)) if wanted else ():
            for name, model in wanted.items():
                with self._phase(name), torch.no_grad():
                    found[name][micro.index_N] = _forward(model, micro).double()
        for found_N in found.values():
            dist.all_reduce(found_N)
        return know(settings, batch, Targets.of(batch.forest), order.estimate, found, self._device)

    def _train(self, batch: Batch, known: Known, order: UpdateOrder) -> tuple[dict[str, float], str]:
        """Every optimiser step of the batch: the metrics, and why steps were not taken."""
        settings, targets = self._settings, Targets.of(batch.forest)
        shares = minibatches(batch.groups, targets, settings.epochs, settings.minibatches, settings.seed + order.iteration)
        steps, reasons = [], []
        for number, examples in enumerate(shares):
            figures = self._gradient(batch, known, targets, examples)
            for name, trainee in self._trainees.items():
                with self._phase("step"):
                    room = "update" if name == checkpoint.STATE else name
                    stepped = trainee.step(figures[f"{room}/loss"])
                skipped = float(bool(stepped.skipped))
                figures |= {f"{room}/grad_norm": stepped.grad_norm, f"{room}/lr": stepped.lr, f"{room}/skipped": skipped}
                if stepped.skipped:
                    where = f"step {number + 1} of {len(shares)}: " if len(shares) > 1 else ""
                    reasons.append(f"{where}{'' if room == 'update' else 'critic: '}{stepped.skipped}")
            steps.append(figures)
        metrics = over_steps(steps, mismatch_drifts=settings.engine_is_old)
        metrics |= {
            "update/trajectories": float(batch.examples),
            "update/sampled_tokens": float(batch.forest.targets),
            "update/unique_tokens": float(batch.forest.tokens),
            "update/steps": float(len(shares)) - metrics["update/skipped"],
        }
        return metrics, "; ".join(reasons)

    def _gradient(self, batch: Batch, known: Known, targets: Targets, examples: Sequence[int]) -> dict[str, float]:
        """Leave the gradient of the examples' loss in the parameters, and give the figures to report.

        FSDP averages gradients over ranks, so with the factor world / count each rank's sum becomes its part of the global mean.
        """
        settings = self._settings
        weights = token_weights(targets, examples, settings.aggregation, settings.fixed_length)
        weight_N = torch.from_numpy(weights).to(self._device)
        count = int((weights > 0).sum())
        valued = count if known.valued_N is None else int((known.valued_N & (weight_N > 0)).sum())
        tally, micro_batches = Tally(self._device), 0
        for micro in self._micro_batches(batch, examples):
            micro_batches += 1
            with self._phase("reference"):
                reference_N = self._reference_logp(micro, known)
            with self._phase("forward"):
                logp_N = _forward(self._policy, micro)
                loss, figures = policy_loss(settings, micro, known, logp_N, reference_N, weight_N)
            with self._phase("backward"):
                (loss * (self._world / count)).backward()
            if self._critic is not None and settings.critic is not None:
                with self._phase("critic"):
                    value_loss = critic_loss(settings.critic.value_clip, micro, known, _forward(self._critic, micro), weight_N)
                    (value_loss * (self._world / valued)).backward()
                figures["critic/loss"] = value_loss * (count / valued)
            tally.add(figures)
            tally.add({"tokens": torch.tensor(len(micro.input_ids_T), device=self._device)})
        gathered = tally.gather()
        forwarded = gathered.pop("tokens")
        result = {name: value if name == MISMATCH_MAX else value / count for name, value in gathered.items()}
        result["update/loss"] = result["update/pg_loss"] + settings.kl_coefficient * result["update/kl"]
        return result | {"update/forwarded_tokens": forwarded, "update/micro_batches": float(micro_batches)}

    def _micro_batches(self, batch: Batch, examples: Sequence[int]) -> Iterator[MicroBatch]:
        """This rank's share of the examples; every rank gets as many."""
        for mine in deal(batch.forest, examples, self._world, self._settings.tokens_per_micro_batch)[self._rank]:
            with self._phase("pack"):
                micro = to_device(batch.forest.pack(mine), self._device)
            yield micro

    def _reference_logp(self, micro: MicroBatch, known: Known) -> Tensor | None:
        """What the loss's KL is to; none where there is no KL in the loss."""
        if self._reference is None or self._settings.kl_in_reward:
            return None
        if known.reference_N is not None:
            return known.reference_N[micro.index_N]
        with torch.no_grad():
            return _forward(self._reference, micro)

    def _canary(self, ids: list[int]) -> list[float]:
        with torch.no_grad():
            return _forward(self._policy, to_device(chain(ids), self._device)).tolist()

    def _export(self, folder: Path) -> None:
        weights = checkpoint.gather_weights(self._policy)
        self._on_first(lambda: checkpoint.write_hf(folder, self._policy, weights, self._model_path, self._export_dtype))

    def _on_first(self, work: Callable[[], None]) -> None:
        """Rank 0 does it; a failure raises UpdateError on every rank."""
        self._together(work if self._rank == 0 else lambda: None)

    def _together(self, work: Callable[[], Value]) -> Value:
        """Do local work that takes no part in any collective; when it fails on any rank, raise UpdateError on every rank."""
        failure = ""
        try:
            value = work()
        except Exception as error:
            failure = str(error) if isinstance(error, UpdateError) else f"{type(error).__name__}: {error}"
        failures: list[str] = [""] * self._world
        dist.all_gather_object(failures, failure)
        if any(failures):
            raise UpdateError(next(each for each in failures if each))
        return value

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started


def _forward(model: Scorer | Critic, micro: MicroBatch) -> Tensor:
    """Log-probs of the targets, or the values of the states they were sampled in."""
    inputs = (micro.input_ids_T, micro.positions_T, micro.tree, micro.predictor_N)
    found_N: Tensor = model(*inputs, micro.target_N) if isinstance(model, Scorer) else model(*inputs)
    return found_N


def _check_state(folder: Path) -> None:
    if not folder.is_dir():
        raise UpdateError(f"{folder.parent} has no {folder.name}/: it was made with other settings")
