"""env.toml of a recorded server: written once, with a comment on every setting, and from then on for people to edit."""

from __future__ import annotations

import re
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from dreamgym.environment import EnvironmentSpec, StateSetting, first_reason, state_setting
from dreamgym.errors import InvalidInput, MissingPackage
from dreamgym.files import write_whole
from dreamgym.recordings.folder.identity import identity_of
from dreamgym.redaction import RedactionRules
from dreamgym.state import StateSchema
from dreamgym.types import JsonObject

if TYPE_CHECKING:
    from tomlkit import TOMLDocument
    from tomlkit.items import Table

NAME = r"[a-z0-9][a-z0-9_-]*"

_REDACT = {
    "secrets": "Find keys, tokens and passwords by their form, and by the name of the field that holds them.",
    "personal": "Kinds of personal data that are taken out.",
    "fields": 'Fields and arguments whose whole value is taken out, besides the known ones: fields = ["customer_no"]',
    "patterns": "Your own regular expressions, by the name of their placeholder: patterns = {badge = '\\bB-\\d{6}\\b'}",
    "allow": "Regular expressions for values that are kept although a rule finds them; the whole value must match.",
}


_STATE = (
    "The schema of the server's state, as its answers show it. It follows the recordings until you change it.",
    "A collection has a table: the field that holds the id, and the type of each other field: string, integer, number,",
    "boolean, array, object or any, with a question mark if it may be null. complete: an unknown id does not exist.",
    "To switch states off, delete these tables and write `state = false` above the first table of this file.",
)


def start_folder(folder: Path, name: str, real: JsonObject) -> None:
    """Make the folder and its env.toml if there is none; an existing env.toml is left as it is.

    Args:
        folder: folder of the environment.
        name: name of the environment.
        real: the table [real], without any secret.

    Raises:
        InvalidInput: the name is not valid, the folder is that of another environment, or it cannot be written.
    """
    if not re.fullmatch(NAME, name):
        raise InvalidInput(
            f"environment name {name!r}: expected lower-case letters, digits, '-' and '_'; give such a name, and the "
            "folder with --out"
        )
    file = folder / "env.toml"
    if file.exists():
        there = name_in(folder)
        if there != name:
            raise InvalidInput(
                f"{folder} is the folder of the environment {there!r}, not of {name!r}: "
                "use that name, or another folder"
            )
        _check_writable(folder)
        return
    _check_tomlkit()
    text = _new(name, real).as_string()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(file, text)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be written: {error.strerror}") from error
    identity_of(folder)


def _check_writable(folder: Path) -> None:
    """Raises InvalidInput if no recording can be written: that must be known before the agent works."""
    try:
        (folder / "recordings").mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder / "recordings"):
            pass
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be written: {error.strerror}") from error


def name_for(folder: Path) -> str:
    """The environment's name in a folder's env.toml; without the file, the folder's own name, which may not be valid.

    Raises:
        InvalidInput: env.toml cannot be read, or its name is not valid.
    """
    return name_in(folder) if (folder / "env.toml").exists() else folder.resolve().name


def name_in(folder: Path) -> str:
    """The name in a folder's env.toml. Raises InvalidInput if there is none."""
    file = folder / "env.toml"
    try:
        name = tomllib.loads(file.read_text(encoding="utf-8")).get("name")
    except FileNotFoundError as error:
        raise InvalidInput(
            f"{folder} is not an environment folder: it has no env.toml. "
            f"`dreamgym record {folder} -- COMMAND` writes one"
        ) from error
    except (OSError, ValueError, RecursionError) as error:  # ValueError: also a number with too many digits
        raise InvalidInput(f"{file}: {error}") from error
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise InvalidInput(f"{file}: expected a name of lower-case letters, digits, '-' and '_', got {name!r}")
    return name


def real_in(folder: Path) -> JsonObject:
    """The table `[real]` of a folder's env.toml; empty if it has none. Raises InvalidInput."""
    real = _config(folder).get("real")
    return real if isinstance(real, dict) else {}


def state_in(folder: Path) -> StateSetting:
    """The setting `state` of a folder's env.toml. Raises InvalidInput."""
    return state_setting(folder / "env.toml", _config(folder).get("state"))


def redaction_in(folder: Path) -> RedactionRules | None:
    """The rules of redaction in a folder's env.toml; None if it has none. Raises InvalidInput."""
    rules = _config(folder).get("redact")
    try:
        return None if rules is None else RedactionRules.model_validate(rules)
    except ValidationError as error:
        raise InvalidInput(f"{folder / 'env.toml'}, [redact]: {first_reason(error)}") from error


def is_deterministic(folder: Path) -> bool:
    """True if a folder's env.toml has `deterministic = true`. Raises InvalidInput."""
    return _config(folder).get("deterministic") is True


def max_steps_in(folder: Path) -> int:
    """`max_steps` in a folder's env.toml, or the default. Raises InvalidInput if the file cannot be read."""
    limits, default = _config(folder).get("limits"), EnvironmentSpec.model_fields["max_steps"].default
    given = limits.get("max_steps") if isinstance(limits, dict) else None
    return given if isinstance(given, int) else int(default)


def write_state(folder: Path, schema: StateSchema) -> None:
    """Replace `[state]` in env.toml by the tables of a schema; nothing else changes."""
    _check_tomlkit()
    import tomlkit

    file = folder / "env.toml"
    document = tomlkit.parse(file.read_text(encoding="utf-8"))
    if "state" in document:
        document["state"] = _state(schema)
    else:
        document.add(tomlkit.nl())
        document.add("state", _state(schema))
    write_whole(file, document.as_string())


def describe(folder: Path, description: str) -> None:
    """Fill in the description in env.toml if it is empty; nothing else changes, comments and order stay."""
    _check_tomlkit()
    import tomlkit

    file = folder / "env.toml"
    document = tomlkit.parse(file.read_text(encoding="utf-8"))
    if not description or document.get("description"):
        return
    document["description"] = tomlkit.string(description, multiline="\n" in description)
    write_whole(file, document.as_string())


def _new(name: str, real: JsonObject) -> TOMLDocument:
    import tomlkit

    document = tomlkit.document()
    document.add(tomlkit.comment("This file is yours: what you change here stays, however often you record."))
    document.add("name", name)
    document.add(tomlkit.nl())
    document.add(tomlkit.comment("A description of this environment in a sentence or two; the simulation reads it."))
    document.add("description", "")
    document.add(tomlkit.comment("How the environment answers if no recording shows it; the simulation reads it."))
    document.add("rules", "")
    document.add(tomlkit.nl())
    document.add("real", _table("The server that was recorded, for `dreamgym check --against real`.", real))
    limits: JsonObject = {"max_steps": EnvironmentSpec.model_fields["max_steps"].default}
    document.add("limits", _table("An episode is cut off after so many calls.", limits))
    document.add("redact", _redact())
    return document


def _state(schema: StateSchema) -> Table:
    import tomlkit

    table = tomlkit.table()
    for line in _STATE:
        table.add(tomlkit.comment(line))
    for name, kind in schema.values.items():
        table.add(name, kind)
    for name, collection in schema.collections.items():
        entities, fields = tomlkit.table(), tomlkit.table()
        entities.add("key", collection.key)
        entities.add("complete", collection.complete)
        for field, kind in collection.fields.items():
            fields.add(field, kind)
        entities.add("fields", fields)
        table.add(name, entities)
    return table


def _table(comment: str, values: JsonObject) -> Table:
    import tomlkit

    table = tomlkit.table()
    table.add(tomlkit.comment(comment))
    for key, value in values.items():
        table.add(key, value)
    table.add(tomlkit.nl())
    return table


def _redact() -> Table:
    import tomlkit

    table = tomlkit.table()
    table.add(tomlkit.comment("Data that is removed before anything is written; a change applies from then on."))
    for name, value in RedactionRules().model_dump(mode="json").items():
        if name in _REDACT:
            table.add(tomlkit.comment(_REDACT[name]))
        if isinstance(value, dict):
            inline = tomlkit.inline_table()
            inline.update(value)
            table.add(name, inline)
        elif value is not None:
            table.add(name, value)
    return table


def _config(folder: Path) -> JsonObject:
    file = folder / "env.toml"
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: also a number with too many digits
        raise InvalidInput(f"{file}: {error}") from error


def _check_tomlkit() -> None:
    try:
        import tomlkit  # noqa: F401
    except ImportError as error:
        raise MissingPackage("writing env.toml", "server") from error
