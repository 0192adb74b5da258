"""Tokenises texts in which a special token may be spelled: only a chat template itself has special tokens.

Otherwise a tool that answers `<|im_end|>` could end a turn and forge another one.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

_BREAK = "\ufdd0"
"""Stands inside of a text that is spelled like a special token, so that it is not read as one."""


class PlainText:
    """Reads texts as texts, with one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def ids(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """The tokens of a text that `broken` has prepared, or that a template made of such texts."""
        first, *more = text.split(_BREAK)
        ids = list(self._tokenizer(first, add_special_tokens=add_special_tokens)["input_ids"])
        return [*ids, *(one for part in more for one in self._tokenizer(part, add_special_tokens=False)["input_ids"])]

    def broken(self, value: Any) -> Any:
        """A copy of a JSON value whose texts contain no special token: each is broken after its first character."""
        if isinstance(value, str):
            return self._special.sub(_BREAK, value.replace(_BREAK, ""))
        if isinstance(value, dict):
            return {name: self.broken(one) for name, one in value.items()}
        return [self.broken(one) for one in value] if isinstance(value, list) else value

    @cached_property
    def _special(self) -> re.Pattern[str]:
        """Finds the place after the first character of each special token."""
        names = (str(one) for one in self._tokenizer.added_tokens_decoder.values() if one.special)
        spelled = (f"(?<={re.escape(name[0])})(?={re.escape(name[1:])})" for name in names if len(name) > 1)
        return re.compile("|".join(spelled) or "(?!)")
