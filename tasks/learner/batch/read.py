"""Makes the batch of an order, and checks it against settings and model."""

from transformers import PretrainedConfig

from nbrl.tasks.advantage.settings import ADVANTAGES_SCHEMA, REWARDS_SCHEMA
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.batch.batch import Batch, batch_of
from nbrl.tasks.learner.order_tables import OrderTables
from nbrl.tasks.learner.orders import UpdateOrder
from nbrl.tasks.learner.settings import UpdateSettings


def make_batch(tables: OrderTables, order: UpdateOrder, settings: UpdateSettings, model: PretrainedConfig) -> Batch:
    """The batch of an order. Raises UpdateError if it does not fit the settings or the model, or has nothing to train on."""
    if order.estimator is None and (settings.critic or settings.kl_in_reward):
        raise UpdateError("a critic and a KL in the reward act before the estimator: give the order rewards and the estimator")
    if order.estimator and order.estimator.with_critic != (settings.critic is not None):
        raise UpdateError(f"advantage.estimator {order.estimator.estimator} and update.critic do not fit together")
    schema = REWARDS_SCHEMA if order.estimator else ADVANTAGES_SCHEMA
    batch = batch_of(tables.trajectories, tables.advantages, schema, order.staleness)
    deepest = max(batch.forest.depth)
    if deepest > model.max_position_embeddings:
        raise UpdateError(f"a trajectory has {deepest} tokens, the model takes {model.max_position_embeddings}")
    least, most = min(int(ids.min()) for ids in batch.forest.ids), max(int(ids.max()) for ids in batch.forest.ids)
    proof = order.proof_token_ids or [0]
    for token in (min(least, *proof), max(most, *proof)):
        if not 0 <= token < model.vocab_size:
            raise UpdateError(f"token id {token} is outside the model's vocabulary of {model.vocab_size}")
    return batch
