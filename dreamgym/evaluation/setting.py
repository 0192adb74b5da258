"""One way to predict: a model, and parts of the method left out. As a string: `MODEL without history,state -k 0`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dreamgym.dream.model import Part
from dreamgym.errors import UnknownName
from dreamgym.types import Frozen

WITHOUT = " without "


class Setting(Frozen):
    """A model, parts of the method that are left out, and how many transitions are shown."""

    model: str
    """Name of the model for `--model`."""
    without: tuple[Part, ...] = ()
    """In the order of Part, none twice."""
    k: int | None = None
    """Number of recorded transitions that are shown; None: as many as the model wants."""

    def __str__(self) -> str:
        parts = WITHOUT + ",".join(self.without) if self.without else ""
        return f"{self.model}{parts}" + ("" if self.k is None else f" -k {self.k}")


def setting(text: str, *, without: Iterable[Part] = ()) -> Setting:
    """The setting of a string; the parts in `without` are left out too. Raises UnknownName for an unknown part."""
    k = None
    if (own := re.search(r" -k (\d+)\s*$", text)) is not None:
        text, k = text[: own.start()], int(own[1])
    model, _, named = text.partition(WITHOUT)
    left_out = set(without)
    for name in filter(None, (part.strip() for part in named.split(","))):
        if name not in set(Part):
            raise UnknownName("part", name, Part)
        left_out.add(Part(name))
    return Setting(model=model.strip(), without=tuple(part for part in Part if part in left_out), k=k)
