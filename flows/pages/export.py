"""The page of one trajectory as a file that can be sent to anybody: nothing on it is loaded from elsewhere."""

from nbrl.flows.pages.app import model_of
from nbrl.flows.pages.reading import KINDS, Reading
from nbrl.flows.pages.render import trajectory_page
from nbrl.flows.pages.tokens import decoder
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.runs import layout_of


def page(storage: Storage, name: str, table: str, identity: str) -> str:
    """The page of a trajectory, which is in the table with this key. Raises ConfigError if it is not there."""
    reading = Reading(storage)
    kind = next(kind for kind in KINDS if table.startswith(f"{layout_of(kind, name).folder}/"))
    stage = next(stage for stage in reading.stages(kind, name) if table in stage.tables)
    found = reading.trajectory(kind, name, stage, identity)
    return trajectory_page(kind, name, stage, found, decoder(model_of(storage, kind, name)), alone=True)
