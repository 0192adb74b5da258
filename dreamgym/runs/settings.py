"""Settings from a TOML file and from the command line, under the same names: `ppo.epochs = 3` and `--ppo.epochs 3`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from dreamgym.environment import first_fault, first_reason
from dreamgym.errors import InvalidInput
from dreamgym.types import JsonObject

Model = TypeVar("Model", bound=BaseModel)


def settings_of(model: type[Model], file: Path | None, arguments: Sequence[str]) -> Model:
    """Read settings from a file and from the command line, which overrides the file.

    Args:
        model: the settings that exist. Its nested models are tables of the file and prefixes of options.
        file: TOML file; None: no file.
        arguments: arguments of the command line, without the options that the program knows itself.

    Raises:
        InvalidInput: a setting does not exist, or has an invalid value. For an unknown setting, the message lists all.
    """
    values = {} if file is None else _read(file)
    options = dict(_pairs(arguments))
    for name, value in options.items():
        table = values
        *tables, last = name.split(".")
        for part in tables:
            inner = table.setdefault(part, {})
            if not isinstance(inner, dict):
                raise InvalidInput(f"--{name}: {part!r} is not a table of settings")
            table = inner
        table[last] = value
    try:
        return model.model_validate(values)
    except ValidationError as error:
        fault = first_fault(error)
        unknown = fault["type"] == "extra_forbidden"
        known = f" (known settings: {', '.join(names(model))})" if unknown else ""
        reason = first_reason(error)
        place = ".".join(map(str, fault["loc"]))  # empty if settings do not fit each other
        is_option = any(not place or f"{place}.".startswith(f"{name}.") for name in options)
        raise InvalidInput(f"{'settings' if file is None or is_option else file}: {reason}{known}") from error


def names(model: type[BaseModel]) -> list[str]:
    """Dotted names of all settings."""
    return [name for name, _ in fields_of(model)]


def described(model: type[BaseModel]) -> str:
    """Names, defaults and descriptions of all settings, for a verb's help."""
    lines = [
        f"--{name.replace('_', '-')} = {field.get_default(call_default_factory=True)}: {_one_line(field.description)}"
        for name, field in fields_of(model)
    ]
    return "\n\n".join(["Settings and their defaults, as options or in the --config file:", *lines])


def fields_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Dotted name and field of each setting, in nested models too."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from fields_of(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    rest = iter(arguments)
    for option in rest:
        if not option.startswith("--"):
            raise InvalidInput(f"expected --NAME VALUE, got {option!r}")
        name, has_value, value = option.removeprefix("--").partition("=")
        if not has_value:
            value = next(rest, "--")
            if value.startswith("--"):
                raise InvalidInput(f"--{name} has no value")
        yield name.replace("-", "_"), value


def _read(file: Path) -> JsonObject:
    try:
        return dict(tomllib.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # ValueError: also a number with too many digits
        raise InvalidInput(f"{file} is not valid TOML: {error}") from error
