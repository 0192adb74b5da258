"""Takes secrets and personal data out of what is recorded, before anything is written."""

from __future__ import annotations

from pydantic import Field

from dreamgym.types import Frozen


class RedactionRules(Frozen):
    """The table [redact] of env.toml."""

    secrets: bool = True
    """Find keys, tokens and passwords by their form and by the name of the field that holds them."""
    personal: tuple[str, ...] = ("email", "phone", "credit_card", "iban", "ip_address", "us_ssn")
    """Which kinds of personal data are taken out; the names of the known rules."""
    fields: tuple[str, ...] = ()
    """Names of fields and arguments whose whole value is taken out, besides the known ones (password, api_key, …)."""
    patterns: dict[str, str] = Field(default_factory=dict)
    """Regular expressions of your own, by the name their placeholder shall have."""
    allow: tuple[str, ...] = ()
    """Regular expressions of what is left alone although a rule finds it; the whole find must match."""
