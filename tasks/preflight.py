"""Everything that can be known to fail before work starts, as one error."""

from infra.engine.settings import EngineSettings
from infra.processes import port_in_use
from infra.storage import Storage
from sandbox import doctor
from tasks.config import Purpose, RunConfig, check
from tasks.errors import ConfigError


def preflight(config: RunConfig, purpose: Purpose) -> None:
    """Raises ConfigError or SandboxError in one sentence; starts nothing that stays and writes nothing."""
    check(config, purpose)
    _engine(config.engine)
    for name, works, message in doctor.boundary():
        if not works:
            raise ConfigError(f"{name}: {message}")


def writable(storage: Storage) -> None:
    """Raises StorageError when nothing can be written there."""
    probe = ".probe"
    storage.write_bytes(probe, b"")
    storage.delete(probe)


def _engine(settings: EngineSettings) -> None:
    if not settings.python.exists():
        raise ConfigError(f"there is no engine environment at {settings.folder}: run `make setup`, or set engine.environment")
    if settings.port is not None:
        if settings.port + settings.count > 65536:
            raise ConfigError(
                f"engine.port {settings.port} leaves no ports for engine.count {settings.count}; choose a lower one"
            )
        for port in range(settings.port, settings.port + settings.count):
            if port_in_use(port):
                raise ConfigError(f"engine.port {port} is taken: end what listens there, choose another, or leave it out")
