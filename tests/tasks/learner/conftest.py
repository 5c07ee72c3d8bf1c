"""Fixtures of the update's tests."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import torch
import torch.distributed as dist

from tests.tasks.learner import update_lab


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random Qwen3."""
    return update_lab.make_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def folder(policy: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(policy, tmp_path / "model"))


@pytest.fixture(scope="session")
def policy64(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in float64, so that its exports are exact."""
    return update_lab.make_policy(tmp_path_factory.mktemp("policy64"), torch.float64)


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This process as the one rank of a gloo group."""
    torch.set_num_threads(1)
    store = tmp_path_factory.mktemp("gloo") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A local Ray."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # socket paths must be short
        ray.init(
            num_cpus=2,
            resources={"seat": 2},
            include_dashboard=False,
            object_store_memory=100 << 20,
            log_to_driver=False,
            _temp_dir=folder,
        )
        yield
        ray.shutdown()
