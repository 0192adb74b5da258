"""Placeholders: keyed hashes in the form of the value that they replace. No rule finds them again."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path

import platformdirs

from dreamgym.errors import InvalidInput

KEY_BYTES = 32
_of_another_machine: list[bytes] = []
"""The key that this process got from another machine, if any."""
MARK = re.compile(
    r"(?:REDACTED-)++(?:(?!REDACTED-)[A-Z0-9-])+-[a-p]{8}|user-[a-p]{8}(?:@|%40)example\.com", flags=re.IGNORECASE
)
"""Pattern of a placeholder. Its hash has letters only, so that no rule takes it for a number. A row of marks is
read once."""


def key_file() -> Path:
    """Path of the key of this user's placeholders; the file may not exist yet."""
    home = os.environ.get("DREAMGYM_HOME")
    return (Path(home) if home else platformdirs.user_data_path("dreamgym")) / "redaction.key"


def load_key() -> bytes:
    """The key of this user's placeholders, created at first use.

    It is kept under DREAMGYM_HOME, else with the user's data, never in an environment folder. So a person who receives
    a folder cannot test guesses against its placeholders. A worker of a cluster uses the key of its command.

    Raises:
        InvalidInput: the file cannot be read or made.
    """
    if _of_another_machine:
        return _of_another_machine[-1]
    path = key_file()
    try:
        if not path.exists():
            _make(path)
        key = path.read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"the redaction key {path} cannot be read or created: {error.strerror}; set DREAMGYM_HOME to another folder"
        ) from error
    if len(key) != KEY_BYTES:
        raise InvalidInput(
            f"the redaction key {path} has {len(key)} bytes, not {KEY_BYTES}: remove the file, and a new key is created"
        )
    return key


def use_key(key: bytes) -> None:
    """Use this key in this process, whatever this machine has: one value gets one placeholder on all machines."""
    _of_another_machine.append(key)


def _make(path: Path) -> None:
    """Create the key file atomically: the first of several processes wins, and none reads half a key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(KEY_BYTES))
    try:
        os.link(own, path)
    except FileExistsError:
        pass
    finally:
        own.unlink()


class Placeholders:
    """Makes placeholders under one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def secret(self, name: str, value: str) -> str:
        """A placeholder such as `REDACTED-API-KEY-lkjhgfdp`."""
        label = re.sub(r"[^A-Z0-9]+", "-", name.upper()).strip("-") or "SECRET"
        return f"REDACTED-{label}-{self._letters(value, 8)}"

    def mark(self, text: str) -> str:
        """Sixteen letters that stand for a whole text."""
        return self._letters(text, 16)

    def email(self, value: str) -> str:
        """An address at example.com. A `%40` instead of `@` is kept."""
        encoded = "%40" in value
        letters = self._letters(value.replace("%40", "@").lower(), 8)
        return f"user-{letters}{'%40' if encoded else '@'}example.com"

    def digits(self, value: str, prefix: str) -> str:
        """The value's layout with other digits: first those of `prefix`, then hashed ones."""
        wanted = [character for character in value if character.isdigit()]
        hashed = str(int.from_bytes(self._hash("".join(wanted)), "big"))[-len(wanted) :]
        fresh = iter((prefix + hashed)[: len(wanted)])
        return "".join(next(fresh) if character.isdigit() else character for character in value)

    def capitals(self, value: str, prefix: str) -> str:
        """The value's layout with its letters and digits replaced: first by `prefix`, then by capital letters."""
        wanted = "".join(character for character in value if character.isalnum())
        fresh = iter((prefix + self._letters(wanted, len(wanted)).upper())[: len(wanted)])
        return "".join(next(fresh) if character.isalnum() else character for character in value)

    def number(self, value: str, bound: int) -> int:
        """A number in [0, bound) that depends on the value alone."""
        return int.from_bytes(self._hash(value), "big") % bound

    def _letters(self, value: str, length: int) -> str:
        nibbles = (nibble for byte in self._hash(value) for nibble in (byte >> 4, byte & 15))
        return "".join(chr(ord("a") + nibble) for nibble in nibbles)[:length]

    def _hash(self, value: str) -> bytes:
        return hmac.new(self._key, value.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()
