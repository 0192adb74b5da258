"""Names of secrets: one list for fields, headers, variables, options and columns.

Under some names every value is a secret (`password`, `api_key`). Under others, only a value that looks like one is: a
`key` may be the key of an issue, `pass` a verb, and a `session` a meeting.
"""

from __future__ import annotations

import re

MAX_NAME = 128
"""Characters of a name at most; a longer text is not a name."""

_SECRET_NAME = re.compile(
    r"""(?:.*_)?(?:
      [a-z0-9]*(?:password|passwd|passphrase|passcode|secret|apikey|authtoken|accesstoken|token)
    | passwort|credentials?|secrets|passwords|authorization|cookies?|cvv2?|cvc2?|otp|totp|csrf|xsrf|dsn
    | jwt|bearer|mnemonic|secret_?string
    | (?:.+_)(?:pwd|pw|pat)
    | (?:api|auth|access|private|secret|signing|encryption|service|account|client|session|ssh|deploy|master|shared
        |license|licence|recovery|hmac|gpg|pgp|app|application|consumer|subscription|admin|webhook|management)_?key
    | session_?id|[a-z]*sessid|jsession_?id
    | (?:security|access|recovery|backup|verification|activation|auth|one_time|two_factor|2fa|mfa|unlock|pin)_?codes?
    | (?:seed|recovery|secret|backup)_?phrase
    | (?:connection|conn)_?(?:string|str|uri|url)
    | (?:database|db|redis|mongo(?:db)?|postgres(?:ql)?|mysql|amqp|rabbitmq|broker|webhook|sentry)_?(?:url|uri)
    | (?:db|smtp|user|mail|email|imap|ftp|admin|root|redis|mysql|pg|postgres|ssh|rabbitmq|basic|http|proxy|login)_?pass
    )(?:_?(?:value|text|plaintext|plain|hash|key|base64|base|new|old|current|confirmation|confirm|repeat|raw|b64|header
        |production|prod|dev|testing|test|staging|live|main|default|primary|secondary|root|\d{1,3}))*+""",
    re.VERBOSE,
)
"""The endings are read once, each as long as possible: two ways to read a run of digits would double the time for each
digit."""
_NO_SECRET_NAME = re.compile(
    r"(?:.*_)?(?:progress|page|next|continuation|cursor|sync|start|end|max|min|num|prompt|completion|total|input|output"
    r"|cached|stop|eos|bos|pad|unk|mask|special)_(?:.*_)?token|mcp_session_id|(?:www|proxy)_authenticate"
)
_KEY = re.compile(r"(?:.*_)?(?:key|sig|signature)")
_WORD = re.compile(r"pass|pw|pwd")
_PIN = re.compile(r"(?:.*_)?pin")
_HINT = re.compile(r"token|secret|passw|api_?key|credential|private|csrf|cookie|auth(?!or(?!i))")
_PLACE = re.compile(
    r"(?:.*_)?(?:sock|file|path|dir|home|host|port|type|timeout|url|uri|endpoint|id|ids|name|count|at|on|policy|version)"
)
_OTHER = re.compile(r"(?:.*_)?(?:auth|basic_auth|pat|sid|session|licen[sc]e)")

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATORS = re.compile(r"[-_. ]+")
_DENSE = re.compile(r"(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])(?=\D*\d)[\w.~+/=-]{16,}|[0-9a-fA-F]{32,}", re.ASCII)
_STANDS_FOR_ONE = re.compile(r"\$|<|\{\{|%[sdv({]|(.)\1*\Z|(?i:your|my|the|none|null|true|false|os\.|process\.|env\.)")


def is_secret_name(name: str) -> bool:
    """True if every value under this name is a secret."""
    snake = _snake(name)
    return bool(_SECRET_NAME.fullmatch(snake)) and not _NO_SECRET_NAME.fullmatch(snake)


def holds_secret(name: str, value: str) -> bool:
    """True if this value under this name is a secret."""
    if is_secret_name(name):
        return True
    snake = _snake(name)
    if _NO_SECRET_NAME.fullmatch(snake) or value[:1] in {"/", ".", "~"}:
        return False
    if _OTHER.fullmatch(snake):
        return len(value) >= 8 and has_letter_and_digit(value)
    if _KEY.fullmatch(snake) or (_HINT.search(snake) and not _PLACE.fullmatch(snake)):
        return is_dense(value)
    if _WORD.fullmatch(snake):
        return len(value) >= 4 and looks_made_up(value)
    if _PIN.fullmatch(snake):
        return value.isdigit() and 4 <= len(value) <= 8
    return False


def may_be_secret_name(name: str) -> bool:
    """True if some values under this name are secrets."""
    snake = _snake(name)
    of_some = any(one.fullmatch(snake) for one in (_KEY, _WORD, _PIN, _OTHER)) or bool(_HINT.search(snake))
    return is_secret_name(name) or of_some


def is_dense(value: str) -> bool:
    """True for a long run of mixed characters, which is neither a name nor a word."""
    return bool(_DENSE.fullmatch(value))


def looks_made_up(value: str) -> bool:
    """True if a value is neither a word nor a stand-in for a secret, such as `$TOKEN`, `<password>` or `****`."""
    bare = value.strip(".!?:").replace("/", "")
    return bool(bare) and not bare.isalpha() and not stands_for_one(value)


def stands_for_one(value: str) -> bool:
    """True for stand-ins of secrets, such as `$TOKEN`, `<password>`, `****` or `your-key`."""
    return bool(_STANDS_FOR_ONE.match(value))


def has_letter_and_digit(value: str) -> bool:
    """True if a value has both letters and digits. Such a value does not occur in a text by chance."""
    return any(map(str.isalpha, value)) and any(map(str.isdigit, value)) and " " not in value


def _snake(name: str) -> str:
    return "" if len(name) > MAX_NAME else _SEPARATORS.sub("_", _CAMEL.sub("_", name)).strip("_").lower()
