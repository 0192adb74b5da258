"""Reads the query parameters of a request. An invalid one is reported in a sentence."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from dreamgym.environment import first_reason
from dreamgym.errors import InvalidInput
from dreamgym.replay.listing import EpisodeFilter
from dreamgym.replay.postgres.listing import PLACE

Parameters = Mapping[str, str]


def whole(given: Parameters, name: str, default: int, *, most: int = 2**31 - 1) -> int:
    """A parameter as a positive whole number, at most `most`. Raises InvalidInput."""
    text = given.get(name, "")
    if not text:
        return default
    if not (text.isdigit() and text.isascii() and len(text) < 10 and int(text) > 0):
        raise InvalidInput(f"{name}={text[:40]!r}: expected a positive whole number")
    return min(int(text), most)


def conditions(given: Parameters) -> EpisodeFilter:
    """The conditions on episodes among the parameters. Raises InvalidInput."""
    names = {name: value for name, value in given.items() if value and name in EpisodeFilter.model_fields}
    try:
        return EpisodeFilter.model_validate(names)
    except ValidationError as error:
        raise InvalidInput(f"invalid filter: {first_reason(error)}") from error


def environment(given: Parameters) -> str:
    """The name of an environment. Raises InvalidInput."""
    env = given.get("env", "")
    if not env or "\x00" in env:
        raise InvalidInput("expected the name of an environment")
    return env


def episode_named(given: Parameters) -> tuple[str, str]:
    """Place and id of an episode. Raises InvalidInput."""
    place, episode = given.get("place") or PLACE, given.get("id", "")
    if not episode:
        raise InvalidInput("expected the id of an episode")
    return place, episode
