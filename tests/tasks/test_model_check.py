"""Model folders whose headers mean much work."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.model_folder.check import check_model

TINY = Path(__file__).parents[2] / "infra" / "policies" / "tiny"


@pytest.mark.attack(
    tried="A model of twenty thousand layers and as many tensors without numbers",
    wall="each tensor is looked at once, whatever layers config.json says there are",
    effect="read like any other",
)
def test_the_work_grows_with_layers_and_tensors_and_not_with_their_product(tmp_path: Path) -> None:
    config = json.loads((TINY / "config.json").read_text())

    def calls(count: int) -> int:
        folder = tmp_path / str(count)
        shutil.copytree(TINY, folder)
        (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": count + 1, "layer_types": None}))
        tensor = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        header = json.dumps({f"model.layers.{number}.mlp.up_proj.weight": tensor for number in range(count)}).encode()
        (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        events = list[str]()
        sys.setprofile(lambda frame, event, argument: events.append(event))
        try:
            with pytest.raises(UpdateError, match=f"no weights of layer {count}, but config.json says {count + 1} layers"):
                check_model(str(folder))
        finally:
            sys.setprofile(None)
        return len(events)

    calls(10)  # what is imported or made once
    assert calls(400) < 2.5 * calls(200)
