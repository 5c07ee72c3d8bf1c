"""The learner: one rank of it. All ranks execute the same orders in the same sequence."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import torch

from nbrl.infra.errors import DamagedCheckpointError, DamagedError, MissingError
from nbrl.infra.manifest import check_folder
from nbrl.infra.node_cache import CopyLease, NodeCache, NodeSettings, PlacedFolder
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.layout.checkpoints import ADAPTER, CRITIC, HF, STATE
from nbrl.tasks.learner.batch.batch import Batch, batch_to_teach, make_batch
from nbrl.tasks.learner.batch.targets import Targets
from nbrl.tasks.learner.batch.token_logprobs import check_scores, table_of
from nbrl.tasks.learner.checkpoint import hugging_face
from nbrl.tasks.learner.checkpoint.identity import checkpoint_identity, order_digest, result_of
from nbrl.tasks.learner.checkpoint.store import store_on
from nbrl.tasks.learner.model.load import Adapters, Layers, load_critic, load_sharded, stored_dtype
from nbrl.tasks.learner.model.lora import Unadapted, merged, write
from nbrl.tasks.learner.model.policy_model import Critic, PolicyModel
from nbrl.tasks.learner.orders import TeachOrder, UpdateOrder, UpdateResult, read_tables
from nbrl.tasks.learner.places import Places
from nbrl.tasks.learner.process.ranks import Ranks, Timer, give_back, set_determinism
from nbrl.tasks.learner.proof import Proof, ProofSequence
from nbrl.tasks.learner.settings import UpdateSettings
from nbrl.tasks.learner.step import proving
from nbrl.tasks.learner.step.equality import forward_of
from nbrl.tasks.learner.step.optimizer import OptimizedModel, digest_of, learning_rate
from nbrl.tasks.learner.step.passes import Passes
from nbrl.tasks.learner.step.proving import mismatch_before, own_mismatch, proof_sequences
from nbrl.tasks.learner.step.train import StepReport, train
from nbrl.tasks.learner.writer import CheckpointWriter
from nbrl.tasks.model_folder.check import check_model
from nbrl.tasks.seeds import derive_seed

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
Read = TypeVar("Read")
INITIAL = ""  # identity of the state that no checkpoint holds: the initial model


@dataclass(frozen=True)
class _Loaded:
    """The models in training with their optimisers, and the passes over them."""

    policy: PolicyModel
    models: dict[str, OptimizedModel]
    passes: Passes


class Learner:
    """Holds the policy, its optimiser and, if the settings need them, the frozen reference and the critic, all sharded over the
    process group.

    The process group must exist. `execute` either returns a result, or raises UpdateError on every rank and can then execute
    the next order; any other exception means that the ranks may be out of step and the process must end.
    """

    def __init__(self, settings: UpdateSettings, places: Places, device: torch.device, seed: int = 0) -> None:
        """Load the models. `seed` initialises new weights and this rank's generators."""
        set_determinism(settings.deterministic)
        self._settings, self._device, self._seed = settings, device, seed
        self._dtype = DTYPES[settings.passes_dtype(device.type == "cuda")]
        self._ranks, self._timer = Ranks(device), Timer(device)
        self._storage, self._store = places.storage, store_on(places.storage, places.nodes, self._ranks)
        self._initial = self._ranks.together(places.initial)
        model_path = self._model_path = str(self._initial.path)
        self._ranks.together(lambda: check_model(model_path))
        self._stored_dtype = stored_dtype(model_path)
        self._forward = self._ranks.from_first(lambda: forward_of(model_path, settings.attention, places.nodes))
        self._adapters = Adapters(settings.lora, derive_seed(seed, "lora")) if settings.lora else None
        self._reference: PolicyModel | None = None
        if settings.kl_coefficient > 0 and not self._adapters:
            how = Layers("reference" in settings.offload, compiled=settings.compile_layers, forward=self._forward)
            self._reference = load_sharded(model_path, self._dtype, self._ranks.mesh, how, frozen=True).requires_grad_(False)
        self._teacher = None if places.teacher is None else self._load_teacher(places.teacher, places.nodes)
        names = [STATE, CRITIC] if settings.critic else [STATE]
        self._writer = CheckpointWriter(self._store, self._ranks, self._timer, names)
        self._loaded: _Loaded | None = self._begin()

    def _load_teacher(self, teacher: PlacedFolder, nodes: NodeSettings) -> PolicyModel:
        self._taught_from = self._ranks.together(lambda: teacher.lease(NodeCache(nodes)))
        path = str(self._taught_from.path)
        self._ranks.together(lambda: check_model(path))
        forward = self._ranks.from_first(lambda: forward_of(path, self._settings.attention, nodes))
        how = Layers(compiled=self._settings.compile_layers, forward=forward)
        return load_sharded(path, self._dtype, self._ranks.mesh, how, frozen=True).requires_grad_(False)

    def teach(self, order: TeachOrder) -> pa.Table:
        """Return the teacher's log-probs of the order's tokens. Raises UpdateError if it has no teacher."""
        tables = self._ranks.together(lambda: read_tables(order, self._storage))
        batch = self._ranks.together(lambda: batch_to_teach(tables))
        if self._loaded is None:  # an update could not load its state
            self._loaded = self._begin()
        logp_N = self._loaded.passes.teacher_logprobs(batch.forest)
        give_back(self._device)
        check_scores(logp_N, "the teacher")
        return table_of(batch.trajectories, Targets.of(batch.forest), logp_N)

    def _begin(self) -> _Loaded:
        """Load the initial models, with optimisers that have taken no step."""
        settings, mesh = self._settings, self._ranks.mesh
        how = Layers("optimizer" in settings.offload, settings.activation_checkpointing, settings.compile_layers, self._forward)
        torch.manual_seed(derive_seed(self._seed, "rank", self._ranks.rank))
        replays = settings.router_replay
        policy = load_sharded(self._model_path, self._dtype, mesh, how, self._adapters, replays=replays)
        reference = Unadapted(policy) if settings.kl_coefficient > 0 and self._adapters else self._reference
        models = {STATE: OptimizedModel(policy.lm, settings, self._rate)}
        critic: Critic | None = None
        if settings.critic is not None:
            critic = load_critic(self._model_path, self._dtype, mesh, how, self._adapters)
            rate = partial(learning_rate, peak=settings.critic.lr, warmup=settings.critic.warmup_steps)
            models[CRITIC] = OptimizedModel(critic, settings, rate)
        self._config = policy.lm.config
        self._holds: str | None = INITIAL  # checkpoint_identity of the state in memory
        passes = Passes(settings, self._ranks, self._device, self._timer, policy, reference, critic, self._teacher)
        return _Loaded(policy, models, passes)

    def _rate(self, step: int) -> float:
        s = self._settings
        return learning_rate(step, s.lr, s.warmup_steps, s.lr_schedule, s.lr_decay_steps, s.lr_floor)

    def execute(self, order: UpdateOrder) -> UpdateResult:
        """Carry out an order, or return the result of its finished checkpoint."""
        ranks, timer, out = self._ranks, self._timer, order.checkpoint_out
        timer.begin()
        with timer.phase("read"):
            start = ranks.from_first(partial(_of_checkpoint, lambda: self._identity(order.checkpoint_in)))
            tables = ranks.together(lambda: read_tables(order, self._storage))
            digest = ranks.from_first(lambda: order_digest(order, tables, start or order.initial))
            earlier = ranks.from_first(lambda: self._store.earlier_result(order, digest))
            if earlier is not None:
                return earlier
            batch = ranks.together(lambda: make_batch(tables, order, self._settings, self._config))
        with timer.phase("load"):
            loaded, repeated = self._bring(order, start)
        if repeated:
            timer.begin()  # the times are those of this order
        own = own_mismatch(order, batch.forest, loaded.passes) if self._settings.router_replay else None
        trained, estimated = self._train(loaded, order, batch)

        def write_parts(folder: Path) -> list[ProofSequence]:
            with timer.phase("proof"):
                sequences = proof_sequences(order, batch.forest, loaded.passes)
            with timer.phase("export"):
                self._export(loaded.policy, folder, order)
                ranks.on_first(lambda: proving.write_token_logprobs(folder, batch, trained.before_N))
            return sequences

        sequences = self._writer.write(order, loaded.models, write_parts)
        with timer.phase("digest"):
            state = digest_of(loaded.models.values(), self._device)
        give_back(self._device)
        metrics = trained.metrics | estimated | timer.metrics() | {"update/repeated": float(repeated)}
        metrics |= {} if own is None else {"mismatch/own_routes_mean_abs": own.mean}
        metrics["update/tokens_per_second"] = batch.forest.tokens / metrics["seconds/total"]
        result = UpdateResult(
            iteration=order.iteration,
            order=digest,
            metrics=metrics,
            checkpoint=out,
            proof=Proof(sequences=sequences, before=own or mismatch_before(batch.forest, trained.before_N)),
            skipped=trained.skipped,
            state=state,
        )
        self._writer.finish(out, result)
        self._holds = ranks.from_first(lambda: self._identity(out))
        return result

    def open(self, checkpoint: str, part: str) -> CopyLease:
        """Return the part of a finished checkpoint, on this machine; not collective. Raises StorageError if it is not there."""
        return self._store.open(checkpoint, part)

    def settle(self) -> None:
        """Collective. Wait until all that was written is there. Raises UpdateError or StorageError if it could not be stored."""
        self._writer.settle()

    def _identity(self, checkpoint: str | None) -> str:
        return INITIAL if checkpoint is None else checkpoint_identity(self._storage, checkpoint)

    def _train(self, loaded: _Loaded, order: UpdateOrder, batch: Batch) -> tuple[StepReport, dict[str, float]]:
        """Take the order's steps; return what they report, and what the estimator did."""
        self._holds = None  # from here to the finished checkpoint, memory holds neither the old state nor a saved one
        constants, estimated = loaded.passes.compute_constants(batch, order.estimator)
        trained = train(self._settings, loaded.passes, loaded.models, self._timer, batch, constants, order.seed, order.steps)
        return trained, estimated

    def _bring(self, order: UpdateOrder, start: str) -> tuple[_Loaded, int]:
        """Load the state of the identity `start`, from which the order starts, unless memory already holds it; returns how many
        updates had to be repeated for it too.
        """
        loaded = self._loaded
        if loaded is not None and start == self._holds:
            return loaded, 0
        self.settle()
        if loaded is None or self._holds != INITIAL:  # else memory is as _begin left it
            loaded = self._loaded = None  # two models at once might not fit into memory
            gc.collect()
            loaded = self._loaded = self._begin()
        self._holds = None
        if (base := order.base) is not None:
            for name, model in loaded.models.items():
                with self._ranks.together(partial(_of_checkpoint, partial(self._store.open, base, name))) as lease:
                    if order.repeats:  # of others the files were compared at the start
                        self._ranks.from_first(partial(_of_checkpoint, partial(check_folder, lease.path, f"{name}/")))
                    self._ranks.together(partial(model.check, lease.path / name))
                    model.load(lease.path / name)
        for repeated in order.repeats:
            self._repeat(loaded, repeated)
        self._holds = start
        return loaded, len(order.repeats)

    def _repeat(self, loaded: _Loaded, order: UpdateOrder) -> None:
        """Bring memory to the state that the order's checkpoint lacks. Raises UpdateError if another state results."""
        ranks, out = self._ranks, order.checkpoint_out
        tables = ranks.together(partial(_of_checkpoint, lambda: read_tables(order, self._storage)))
        self._train(loaded, order, ranks.together(lambda: make_batch(tables, order, self._settings, self._config)))
        made = ranks.from_first(partial(_of_checkpoint, lambda: result_of(self._storage, out).state))
        if digest_of(loaded.models.values(), self._device) != made:
            raise UpdateError(
                f"{self._storage.uri(out)} has no state to go on from, and its update, repeated, gives another one: it was made "
                "on other devices, by another number of ranks or in other micro-batches; go on as it was made, or make it again "
                f"by --redo {order.iteration + 1}:update"
            )

    def _export(self, policy: PolicyModel, folder: Path, order: UpdateOrder) -> None:
        dtype = torch.float32 if order.dtype == "float32" else self._stored_dtype
        early = None if self._settings.lora else dtype  # adapters are merged in float32
        weights = hugging_face.gather_weights(policy, self._ranks, self._device, early)

        def save() -> None:
            complete = weights
            try:
                if self._settings.lora:
                    write(folder / ADAPTER, weights, self._settings.lora)
                    complete = merged(weights, self._settings.lora)
                hugging_face.write(folder / HF, policy, complete, self._model_path, dtype)
            except Exception as error:
                raise UpdateError(f"cannot write {folder}, is the disk full? {type(error).__name__}: {error}") from error

        self._ranks.on_first(save)


def _of_checkpoint(read: Callable[[], Read]) -> Read:
    """Return the parts read of the checkpoint an order starts from. Raises DamagedCheckpointError if it is gone or damaged."""
    try:
        return read()
    except (DamagedError, MissingError) as error:
        raise DamagedCheckpointError(str(error)) from error
