"""The rules of redaction: the table [redact] of env.toml."""

from __future__ import annotations

from pydantic import Field, field_validator

from dreamgym.redaction.linear import compiled
from dreamgym.types import Frozen

KINDS = ("email", "phone", "credit_card", "iban", "ip_address", "us_ssn")
"""Kinds of personal data that can be found by their form."""


class RedactionRules(Frozen):
    """The table [redact] of env.toml."""

    secrets: bool = True
    """Find keys, tokens and passwords by their form and by the name of the field that holds them."""
    personal: tuple[str, ...] = KINDS
    """Kinds of personal data to remove."""
    fields: tuple[str, ...] = ()
    """Names of fields, arguments and columns whose value is removed, besides the known ones (password, api_key, …)."""
    patterns: dict[str, str] = Field(default_factory=dict)
    """Your own regular expressions (RE2: no look-around), by the name for their placeholder."""
    allow: tuple[str, ...] = ()
    """Regular expressions of values to keep although a rule finds them. The whole value must match."""

    @field_validator("personal")
    @classmethod
    def _are_known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := set(value) - set(KINDS):
            raise ValueError(f"unknown kinds of personal data {sorted(unknown)}: expected some of {', '.join(KINDS)}")
        return value

    @field_validator("patterns", "allow")
    @classmethod
    def _compile(cls, value: dict[str, str] | tuple[str, ...]) -> dict[str, str] | tuple[str, ...]:
        for pattern in value.values() if isinstance(value, dict) else value:
            try:
                found = compiled(pattern)
            except ValueError as error:
                raise ValueError(f"{pattern!r} is not a regular expression that RE2 supports: {error}") from error
            if found.fullmatch(""):
                raise ValueError(f"{pattern!r} matches the empty text, so it would match everywhere")
        return value
