"""Removes secrets and personal data from recordings before anything is written.

The same value always gets the same placeholder, of the same form: a dream made of redacted recordings stays coherent,
and parsers and schemas still work. No value is stored; a placeholder is a keyed hash, and the key stays with the user
who records.
"""

from __future__ import annotations

from dreamgym.redaction.placeholder import load_key
from dreamgym.redaction.redactor import Redact, Redactor, redact_by
from dreamgym.redaction.rules import RedactionRules
from dreamgym.redaction.trajectory import redacted, redacted_task

__all__ = ["Redact", "RedactionRules", "Redactor", "load_key", "redact_by", "redacted", "redacted_task"]
