"""Signatures of published runs, made and checked by ssh-keygen (`-Y`, see its manual): this package has no cryptography."""

import subprocess
import tempfile
from pathlib import Path

from nbrl.tasks.bundle.contents import CONTENTS, SIGNATURE
from nbrl.tasks.errors import ConfigError

NAMESPACE, SIGNER = "nbrl-run", "publisher"
LIMIT_S, LARGEST = 60.0, 64 << 10  # bytes of a signature or a public key


def sign(folder: Path, key: Path) -> None:
    """Sign the list of a published run with a private SSH key, or one whose private half an agent holds. Raises ConfigError."""
    if not key.is_file():
        raise ConfigError(f"--sign {key} is no file; name an SSH key, for example ~/.ssh/id_ed25519")
    _ssh_keygen("sign", "-f", str(key), "-n", NAMESPACE, str(folder / CONTENTS), said="signed")


def check_signature(folder: Path, key: Path) -> None:
    """Raises ConfigError unless the owner of this public SSH key signed the list of a published run."""
    signature, public = folder / SIGNATURE, _public(key)
    if signature.is_symlink() or not signature.is_file() or signature.stat().st_size > LARGEST:
        raise ConfigError(f"{folder} is not signed: it has no {SIGNATURE}")
    with tempfile.TemporaryDirectory() as scratch:
        allowed = Path(scratch) / "allowed"
        allowed.write_text(f'{SIGNER} namespaces="{NAMESPACE}" {public}\n')
        _ssh_keygen(
            "verify",
            *("-f", str(allowed), "-I", SIGNER, "-n", NAMESPACE, "-s", str(signature)),
            said=f"signed by the owner of {key}",
            given=(folder / CONTENTS).read_text(),
        )


def is_signed(folder: Path) -> bool:
    """Return whether a published run has a signature, of whomever."""
    return (folder / SIGNATURE).is_file()


def _public(key: Path) -> str:
    """Return the type and the key in a public SSH key's file, without its comment."""
    if not key.is_file() or key.stat().st_size > LARGEST:
        raise ConfigError(f"--signed-by {key} is no file; name a public SSH key, for example id_ed25519.pub")
    words = key.read_text(errors="replace").split()
    if len(words) < 2 or not words[0].startswith(("ssh-", "ecdsa-", "sk-")):
        raise ConfigError(f"--signed-by {key} is no public SSH key; it begins with a word such as ssh-ed25519")
    return " ".join(words[:2])


def _ssh_keygen(action: str, *words: str, said: str, given: str = "") -> None:
    try:
        done = subprocess.run(
            ["ssh-keygen", "-Y", action, *words],
            input=given,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise ConfigError("ssh-keygen is not installed, by which runs are signed; install OpenSSH's client") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"ssh-keygen took longer than {LIMIT_S:g} s; does the key ask for a passphrase?") from error
    if done.returncode:
        reason = " ".join((done.stderr or done.stdout).split())[:300]
        raise ConfigError(f"the published run is not {said}: {reason}")
