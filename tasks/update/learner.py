"""The learner: one rank of it. All ranks execute the same orders in the same sequence."""

# ruff: noqa: N806 - suffixes of tensor names are shapes

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from tasks.update import checkpoint
from tasks.update.batch import Batch, MicroBatch, deal, read_batch, to_device
from tasks.update.errors import UpdateError
from tasks.update.folder import check_model
from tasks.update.loss import k3, policy_gradient
from tasks.update.model import load_sharded, stored_dtype
from tasks.update.orders import CANARY_TOKENS, UpdateOrder, UpdateResult
from tasks.update.scorer import Scorer
from tasks.update.settings import UpdateSettings
from tasks.update.tree import chain

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
INITIAL = ""  # stands for the initial model where a checkpoint's identity would
Value = TypeVar("Value")


class Learner:
    """Holds the policy, its optimiser and, when there is a KL term, the frozen reference, all sharded over the process group.

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
        self._seconds: dict[str, float] = {}
        self._begin()

    def _begin(self) -> None:
        """The initial model and an optimiser that has taken no step."""
        torch.manual_seed(self._settings.seed + self._rank)
        self._policy = load_sharded(self._model_path, self._dtype, self._mesh)
        self._optimizer = torch.optim.AdamW(self._policy.parameters(), lr=0.0)
        self._steps = 0
        # Adam makes its moments in its first step. Made here instead, by a step that moves nothing, every checkpoint has them.
        for parameter in self._policy.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self._optimizer.step()
        self._optimizer.zero_grad()
        for state in self._optimizer.state.values():
            state["step"].zero_()
        self._holds: str | None = INITIAL  # checkpoint.identity of the state in memory

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
        metrics = self._gradient(batch)
        self._holds = None  # from here to the finished checkpoint, memory holds neither the old state nor a saved one
        with self._phase("step"):
            skipped = self._step(metrics)
        canary = order.canary_token_ids or batch.canary_token_ids
        with self._phase("canary"):
            logprobs = self._canary(canary)
        out = order.checkpoint_out
        with self._phase("checkpoint"):
            self._on_first(lambda: checkpoint.clear_partial(out))
            checkpoint.save_state(checkpoint.partial(out) / checkpoint.STATE, self._policy, self._optimizer, self._steps)
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
        batch = read_batch(order.trajectories, order.advantages, CANARY_TOKENS)
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
            self._steps = checkpoint.load_state(Path(checkpoint_in) / checkpoint.STATE, self._policy, self._optimizer)
        self._holds = wanted

    def _gradient(self, batch: Batch) -> dict[str, float]:
        """Leave the gradient of the whole batch's mean loss a sampled token in the parameters, and give the metrics.

        FSDP averages gradients over ranks, so with the factor world / N each rank's sum becomes its part of the global mean.
        """
        forest = batch.forest
        hands = deal(forest, batch.examples, self._world, self._settings.tokens_per_micro_batch)
        scale = self._world / forest.targets
        sums_4 = torch.zeros(4, dtype=torch.float64, device=self._device)  # policy gradient, KL, log-prob, |mismatch|
        worst = torch.zeros(1, dtype=torch.float64, device=self._device)
        forwarded = torch.zeros(1, dtype=torch.int64, device=self._device)
        for examples in hands[self._rank]:
            with self._phase("pack"):
                micro = to_device(forest.pack(examples), self._device)
            forwarded += len(micro.input_ids_T)
            with self._phase("reference"):
                reference_N = self._reference_logp(micro)
            with self._phase("forward"):
                logp_N = _score(self._policy, micro)
                pg_N = policy_gradient(logp_N, micro.advantage_N.to(logp_N.dtype))
                kl_N = torch.zeros_like(pg_N) if reference_N is None else k3(logp_N, reference_N, self._settings.kl_clamp)
                loss = (pg_N + self._settings.kl_coefficient * kl_N).sum() * scale
            with self._phase("backward"):
                loss.backward()
            with torch.no_grad():
                mismatch_N = (logp_N.double() - micro.engine_logprob_N).abs()
                sums_4 += torch.stack([each.double().sum() for each in (pg_N, kl_N, logp_N, mismatch_N)])
                worst = torch.maximum(worst, mismatch_N.max()) if len(mismatch_N) else worst
        dist.all_reduce(sums_4)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        dist.all_reduce(forwarded)
        pg, kl, logp, mismatch = (sums_4 / forest.targets).tolist()
        return {
            "update/loss": pg + self._settings.kl_coefficient * kl,
            "update/pg_loss": pg,
            "update/kl": kl,
            "update/entropy": -logp,
            "update/trajectories": float(batch.examples),
            "update/sampled_tokens": float(forest.targets),
            "update/unique_tokens": float(forest.tokens),
            "update/forwarded_tokens": float(forwarded.item()),
            "update/micro_batches": float(len(hands[0])),
            "mismatch/logprob_max_abs": worst.item(),
            "mismatch/logprob_mean_abs": mismatch,
        }

    def _reference_logp(self, micro: MicroBatch) -> Tensor | None:
        if self._reference is None:
            return None
        with torch.no_grad():
            return _score(self._reference, micro)

    def _step(self, metrics: dict[str, float]) -> str:
        """One optimiser step, unless loss or gradient is not finite; why not, or nothing."""
        settings = self._settings
        lr = settings.lr * min(1.0, (self._steps + 1) / max(1, settings.warmup_steps))
        norm = torch.nn.utils.clip_grad_norm_(self._policy.parameters(), settings.grad_clip)
        grad_norm = (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()
        skipped = ""
        if not math.isfinite(metrics["update/loss"]):
            skipped = f"the loss is {metrics['update/loss']}"
        elif not math.isfinite(grad_norm):
            skipped = f"the gradient's norm is {grad_norm}"
        else:
            for group in self._optimizer.param_groups:
                group.update(lr=lr, betas=settings.betas, eps=settings.eps, weight_decay=settings.weight_decay)
            self._optimizer.step()
            self._steps += 1
        self._optimizer.zero_grad()
        metrics.update({"update/grad_norm": grad_norm, "update/lr": lr, "update/skipped": float(bool(skipped))})
        return skipped

    def _canary(self, ids: list[int]) -> list[float]:
        with torch.no_grad():
            return _score(self._policy, to_device(chain(ids), self._device)).tolist()

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


def _score(scorer: Scorer, micro: MicroBatch) -> Tensor:
    logp_N: Tensor = scorer(micro.input_ids_T, micro.positions_T, micro.tree, micro.predictor_N, micro.target_N)
    return logp_N
