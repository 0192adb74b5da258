"""Options that verbs once had, and what they are called now."""

from __future__ import annotations

from collections.abc import Sequence

from dreamgym.errors import InvalidInput

IN_SETTING = "it is a part of --model now: --model 'MODEL without history,state -k 5'"
OLD = {
    ("demo", "--controls"): "it is gone: --full trains the control, with three seeds",
    ("demo", "--dsn"): "it is gone: the demonstration has a database server of its own",
    ("fit", "--micro-batch"): "it is gone: a process computes 8 rows at once",
    ("fit", "--patience"): "it is gone: a fit ends after 4 measurements without a lower held-out loss",
    ("check", "-k"): IN_SETTING,
    ("fidelity", "-k"): IN_SETTING,
    ("fidelity", "--without"): IN_SETTING,
    ("fidelity", "--compare"): "give --model twice: --model A --model B",
    ("fidelity", "--encoder"): "set the variable DREAMGYM_ENCODER, which all verbs read",
    ("fidelity", "--gamma"): "it is gone: the bound takes 1 - 1 / max_steps of the environment",
    ("fidelity", "--kl"): "it is gone: the bound is that of the model alone, without a policy step",
    ("fidelity", "--price-in"): "it is --cost prompt=NUMBER now",
    ("fidelity", "--price-out"): "it is --cost completion=NUMBER now",
    ("fidelity", "--real-seconds"): "it is --cost real_seconds=NUMBER now",
    ("fidelity", "--real-price"): "it is --cost real_price=NUMBER now",
    ("fidelity", "--real-parallel"): "it is --cost real_parallel=NUMBER now",
}
"""What to do instead, by verb and option."""


def refuse_old_options(arguments: Sequence[str]) -> None:
    """Raises InvalidInput for an option that the verb no longer has; it says what to do instead.

    Args:
        arguments: of the program, the verb first.
    """
    verb, *rest = arguments or ("",)
    for word in rest:
        option = word.partition("=")[0]
        if option == "--":
            return
        if (verb, option) in OLD:
            raise InvalidInput(f"{option}: {OLD[verb, option]}")
