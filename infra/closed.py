"""The base of settings and of records that are kept as JSON."""

from pydantic import BaseModel, ConfigDict
from pydantic.config import JsonDict

FREE: JsonDict = {"decides": False}  # of a field of settings: it may change when a run is continued


class ClosedModel(BaseModel):
    """It has no other fields than its own, and never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FiniteModel(BaseModel):
    """A ClosedModel without infinite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
