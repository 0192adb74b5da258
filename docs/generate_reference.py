"""Write the reference of the command line, of the experiment file and of `import dreamgym` from the code.

    python docs/generate_reference.py        # writes the pages in docs/reference

A test fails if the files differ from what this script writes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from enum import EnumMeta
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import dreamgym
from dreamgym.cli.app import app
from dreamgym.cli.options import VARIABLES
from dreamgym.cli.serve import app as serve
from dreamgym.runs.experiment import plan
from dreamgym.runs.settings import fields_of
from dreamgym.runs.train.config import TrainConfig

REFERENCE = Path(__file__).parent / "reference"
EXPERIMENT: dict[str, type[BaseModel]] = {
    "The file": plan.Plan,
    "`[[recorded]]`: episodes to play": plan.Play,
    "`[[recorded]]`: episodes of a file": plan.RecordedFile,
    "`[warm]`": plan.WarmStart,
    "`[test]`": plan.Measured,
    "`[[arm]]`": plan.Arm,
    "`fit` of an arm": plan.Fit,
    "`[[compare]]`": plan.Comparison,
}
"""The tables of an experiment file by their headings."""
NOTE = "<!-- Written by `python docs/generate_reference.py`; do not edit. -->"


def cli() -> str:
    """The page of the command line: every verb, its arguments, options, defaults and example."""
    programs = {"dreamgym": typer.main.get_command(app), "dreamgym-serve": typer.main.get_command(serve)}
    variables = [
        "## Variables",
        "",
        "They are read from the environment.",
        "",
        *_table(("variable", "meaning"), [(f"`{name}`", _escaped(text)) for name, text in VARIABLES.items()]),
        "",
    ]
    sections = [line for name, command in programs.items() for line in _verb(name, command)]
    settings = [
        "## Settings of `dreamgym train`",
        "",
        "Set them in the file of `--config`, or on the command line as `--name VALUE`.",
        "",
        *_table(
            ("setting", "default", "meaning"),
            [
                (f"`{name.replace('_', '-')}`", _default(_field_default(info)), _escaped(_one_line(info.description)))
                for name, info in fields_of(TrainConfig)
            ],
        ),
    ]
    return "\n".join([NOTE, "", "# Command line", "", *sections, *variables, *settings, ""])


def _verb(name: str, command: Any) -> Iterator[str]:
    if hasattr(command, "commands"):
        for part, inner in command.commands.items():
            yield from _verb(f"{name} {part}", inner)
        return
    text, _, example = (command.help or "").partition("Example:")
    places = [param for param in command.params if param.param_type_name == "argument"]
    yield from (f"## `{name}`", "", _escaped(text.strip()), "")
    yield from (f"Usage: `{' '.join([name, '[OPTIONS]', *map(_place, places)])}`", "")
    if example:
        yield from (f"Example: `{' '.join(example.split())}`", "")
    arguments = [
        (f"`{_place(param)}`", _default(_value(param)), _escaped(_one_line(param.help)))
        for param in places
        if param.help
    ]
    if arguments:
        yield from (*_table(("argument", "default", "meaning"), arguments), "")
    rows = [
        (
            f"`{'/'.join([*param.opts, *param.secondary_opts])}`",
            _default(_value(param)),
            _escaped(_one_line(param.help)),
        )
        for param in command.params
        if param.param_type_name == "option" and not param.hidden and param.name != "help"
    ]
    if rows:
        yield from (*_table(("option", "default", "meaning"), rows), "")


def _place(param: Any) -> str:
    """An argument as it is written in a usage line."""
    shown = param.metavar or param.name.upper()
    return shown if param.required or shown.startswith("[") else f"[{shown}]"


def _value(param: Any) -> object:
    if param.required:
        return "required"
    return None if callable(param.default) or param.default in ((), [], "") else param.default


def _field_default(info: FieldInfo) -> object:
    return _plain(info.get_default(call_default_factory=True))


def _default(value: object) -> str:
    if value is None or value is PydanticUndefined or value is False:
        return ""
    return f"`{getattr(value, 'value', value)}`"


def python() -> str:
    """The page of `import dreamgym`: every public name with its signature, docstring and fields."""
    lines = [NOTE, "", "# Python", "", _escaped(inspect.getdoc(dreamgym) or ""), ""]
    for name in sorted(dreamgym.__all__, key=str.lower):
        thing = getattr(dreamgym, name)
        if not name.startswith("_"):
            lines += [*_entry(name, thing), ""]
    return "\n".join(lines)


def experiment() -> str:
    """The page of the experiment file: the keys of each of its tables."""
    _, _, text = (inspect.getdoc(plan) or "").partition("\n\n")
    first = "The keys of a file for `dreamgym experiment`. [Train](../training.md#experiments) has an example."
    lines = [NOTE, "", "# Experiment file", "", first, "", _escaped(text), ""]
    for heading, table in EXPERIMENT.items():
        texts = _attribute_texts(table)
        rows = [(f"`{key}`", _key_default(info), texts[key]) for key, info in table.model_fields.items()]
        lines += [f"## {heading}", "", _docstring(table), "", *_table(("key", "default", "meaning"), rows), ""]
    return "\n".join(lines)


def _key_default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    return "" if isinstance(info.default, BaseModel) else _default(_field_default(info))


def _entry(name: str, thing: Any) -> Iterator[str]:
    yield from (f"## `{name}`", "")
    if inspect.isfunction(thing):
        yield from ("<!-- not run: a signature -->", "```text", _signature(name, thing), "```", "")
    yield _docstring(thing)
    if isinstance(thing, EnumMeta):
        texts = _attribute_texts(thing)
        members: dict[str, Any] = dict(thing.__members__)
        values = {name: member.value for name, member in members.items()}
        yield from (
            "",
            *_table(("value", "meaning"), [(f"`{value}`", texts.get(name, "")) for name, value in values.items()]),
        )
    elif isinstance(thing, type) and issubclass(thing, BaseModel):
        texts = _attribute_texts(thing)
        rows = [
            (f"`{field}`", f"`{_annotation(info.annotation)}`", _default(_plain(info.default)), texts.get(field, ""))
            for field, info in thing.model_fields.items()
        ]
        yield from ("", *_table(("field", "type", "default", "meaning"), rows))
    if isinstance(thing, type):
        yield from _methods(thing)


def _methods(thing: type) -> Iterator[str]:
    for name, member in list(vars(thing).items()):
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(function) or name in getattr(thing, "__annotations__", {}):
            continue
        text = _escaped(_one_line((inspect.getdoc(function) or "").split("\n\n")[0]))
        call = f"{_before(function)}{name}"
        signature = name if isinstance(member, property) else f"{call}{_short_signature(function)}"
        if text:
            yield from ("", f"- `{signature}`: {text}")


def _signature(name: str, function: Any) -> str:
    """The signature as in the source code, with one parameter per line."""
    signature = inspect.signature(function)
    lines: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "    *," not in lines:
            lines.append("    *,")
        default = "" if parameter.default is parameter.empty else f" = {_literal(parameter.default)}"
        lines.append(f"    {parameter.name}: {parameter.annotation}{default},")
    return "\n".join([f"{_before(function)}{name}(", *lines, f") -> {_returned(function, signature)}"])


def _before(function: Any) -> str:
    """What a caller writes before the call: a coroutine is awaited, and an asynchronous context manager opened."""
    if inspect.isasyncgenfunction(inspect.unwrap(function)):
        return "async with "
    return "await " if inspect.iscoroutinefunction(function) else ""


def _returned(function: Any, signature: inspect.Signature) -> str:
    """The annotation of what the caller gets: of a context manager, what it yields."""
    told = str(signature.return_annotation)
    return told.removeprefix("AsyncIterator[").removesuffix("]") if "async with" in _before(function) else told


def _literal(value: object) -> str:
    return value.__name__ if inspect.isfunction(value) else repr(getattr(value, "value", value))


def _short_signature(function: Any) -> str:
    parameters = [parameter for parameter in inspect.signature(function).parameters if parameter not in {"self", "cls"}]
    return f"({', '.join(parameters)})"


def _annotation(annotation: Any) -> str:
    text = (
        annotation.__name__ if isinstance(annotation, type) and not hasattr(annotation, "__args__") else str(annotation)
    )
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text).replace("|", "or")


def _plain(value: object) -> object:
    return None if value in ((), "") else value


def _attribute_texts(thing: type) -> dict[str, str]:
    """The string below each field or member. It is read from the source, because Python does not keep it."""
    texts: dict[str, str] = {}
    for base in reversed(thing.__mro__):
        if not base.__module__.startswith("dreamgym"):
            continue
        source = inspect.getsource(base)
        for name, text in re.findall(r'^    (\w+)\b[^\n]*(?:=|:)[^\n]*\n    """(.*?)"""', source, flags=re.S | re.M):
            texts[name] = _escaped(_one_line(text))
    return texts


def _docstring(thing: Any) -> str:
    text = _escaped(inspect.getdoc(thing) or "")
    return re.sub(r"\n\n(Args|Returns|Raises):((?:\n {4}.*)+)", _list, text)


def _list(found: re.Match[str]) -> str:
    items = re.sub(r"\n {8,}", " ", found[2].strip()).splitlines()
    return "\n\n".join(["", f"{found[1]}:", "\n".join(f"- {item.strip()}" for item in items)])


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    def line(cells: tuple[str, ...]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    return [line(head), "|" + "---|" * len(head), *map(line, rows)]


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _escaped(text: str) -> str:
    """Escape the characters that Markdown would interpret, except in code."""
    return re.sub(r"(`[^`]*`|(?m:^ {4}\w.*[=(].*$))|([<*_\[\]])", lambda m: m[1] or chr(92) + m[2], text)


PAGES = {"cli.md": cli, "experiment.md": experiment, "python.md": python}


def main() -> None:
    """Write the pages."""
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
