"""Sends weights from rank 0 to engines without the storage: those of a checkpoint, from its machine's copy."""

import base64
import pickle
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import ray
import torch
from safetensors.torch import load_file

from nbrl.infra.engine.client import adapter_name
from nbrl.infra.engine.command import LOOPBACK
from nbrl.infra.engine.settings import headers
from nbrl.infra.engine.weight_group import WeightGroup
from nbrl.infra.errors import EngineError, shortened
from nbrl.infra.node_cache import CopyLease
from nbrl.infra.parse import json_value
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.layout.checkpoints import ADAPTER, HF
from nbrl.tasks.learner.checkpoint.buckets import Buckets
from nbrl.tasks.learner.orders import AdapterOrder, Offer, OfferOrder, SendOrder
from nbrl.tasks.learner.process.weight_sending import WeightSending

TIMES = 2  # what is sent is loaded, and then compared with what is sent once more


class Sender:
    """`opened` gives a subfolder of a checkpoint on this machine. An order that fails raises UpdateError, or StorageError."""

    def __init__(self, opened: Callable[[str, str], CopyLease], device: torch.device) -> None:
        self._open, self._device = opened, device
        self._offered = ExitStack()  # what an offer holds until it is sent, or replaced
        self._sending: WeightSending | None = None
        self._buckets: Buckets | None = None

    def execute(self, order: OfferOrder | SendOrder | AdapterOrder) -> Offer | None:
        match order:
            case OfferOrder():
                return self._offer(order)
            case AdapterOrder():
                self._send_adapter(order)
                return None
            case SendOrder():
                self._send(order.group)
                return None

    def close(self) -> None:
        """Withdraw what was offered."""
        self._sending = self._buckets = None
        self._offered.close()

    def _offer(self, order: OfferOrder) -> Offer:
        self.close()
        lease = self._offered.enter_context(self._open(order.checkpoint, HF))
        self._buckets = Buckets(lease.path / HF)
        address = ray.util.get_node_ip_address() if order.cluster else LOOPBACK
        try:
            self._sending = WeightSending(address, order.limit_s)
        except (OSError, RuntimeError) as error:
            raise UpdateError(f"rank 0 cannot listen for engines at {address}: {error}") from error
        self._offered.callback(self._sending.close)
        cuda = self._device.type == "cuda"
        return Offer(address=address, port=self._sending.port, buckets=self._buckets.all, cuda=cuda)

    def _send(self, group: WeightGroup) -> None:
        sending, buckets = self._sending, self._buckets
        if sending is None or buckets is None:
            raise UpdateError("rank 0 has offered no weights: it was started again meanwhile")
        device = self._device if group.backend == "nccl" else torch.device("cpu")
        try:
            sending.meet(group)
            for _ in range(TIMES):
                for whole in buckets.filled(device):
                    sending.send(whole)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        except RuntimeError as error:
            raise UpdateError(
                f"rank 0 could not send all weights to all engines: {' '.join(str(error).split())[:300]}"
            ) from error
        finally:
            self.close()

    def _send_adapter(self, order: AdapterOrder) -> None:
        with self._open(order.checkpoint, ADAPTER) as lease:
            try:
                send_adapter(lease.path / ADAPTER, order.version, order.url, order.key, order.limit_s)
            except EngineError as error:
                raise UpdateError(f"rank 0 could not send an adapter: {error}") from error


def send_adapter(folder: Path, version: str, url: str, key: str, limit_s: float) -> None:
    """Load peft's adapter in a folder, of the weights `version`, into the engine at `url`, which must not have it.

    Raises EngineError if the engine does not take it within `limit_s` seconds.
    """
    body = {
        "lora_name": adapter_name(version),
        "config_dict": json_value((folder / "adapter_config.json").read_text()),
        "serialized_tensors": base64.b64encode(pickle.dumps(load_file(folder / "adapter_model.safetensors"))).decode(),
    }
    try:
        where = f"{url}/load_lora_adapter_from_tensors"
        answer = httpx.post(where, json=body, headers=headers(key), timeout=limit_s, trust_env=False)
    except httpx.HTTPError as error:
        raise EngineError(f"the engine at {url} did not take an adapter: {shortened(error) or type(error).__name__}") from error
    if answer.status_code != 200:
        raise EngineError(f"the engine at {url} answered an adapter with {answer.status_code}: {answer.text[:300].strip()}")
