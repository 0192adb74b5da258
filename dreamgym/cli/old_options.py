"""Options that verbs once had, and what to do instead."""

from __future__ import annotations

from collections.abc import Sequence

from dreamgym.errors import InvalidInput

IN_SETTING = "it is a part of --model now: --model 'MODEL without history,state -k 5'"
IN_SERVED_SETTING = "it is a part of --model now: --model 'MODEL without history,state'"
IN_BASE = "it is a part of --base now: --base 'tiny without history -k 5'"
DSN = "set the variable DREAMGYM_DSN, which all verbs read"
ENCODER = "set the variable DREAMGYM_ENCODER, which all verbs read"
POLICY_URL = "set the variable OPENAI_BASE_URL"
PRICE = "set the variable DREAMGYM_PRICE=IN,OUT, in dollars per million tokens"
NO_JSON = "it was removed: programs can use `dreamgym.runs.environments` in Python"
OLD = {
    **{
        (verb, "--dsn"): DSN
        for verb in ("collect", "seed", "serve", "fit", "import", "play", "tasks", "train", "eval", "db prune")
    },
    ("annotate", "--out"): "it was removed: copy the file, and give the copy with --trajectories",
    ("annotate", "--seed"): "it was removed: in Python there is `dreamgym.runs.annotate.annotate(seed=…)`",
    ("check", "-k"): IN_SETTING,
    ("collect", "--policy-url"): POLICY_URL,
    ("db prune", "--json"): "it was removed: each line is a number and a name",
    ("db prune", "--keep"): "it was removed: of a task that is always solved, 4 dreams are kept per stop reason",
    (
        "db status",
        "--json",
    ): "it was removed: `dreamgym db url` fails if the server does not run, else it prints its address",
    ("demo", "--controls"): "it was removed: --full trains the control, with three seeds",
    ("demo", "--dsn"): "it was removed: the demonstration has a database server of its own",
    ("env doctor", "--episodes"): "it was removed: three episodes are played; benchmarks/environments.py plays more",
    ("env doctor", "--json"): NO_JSON,
    ("env doctor", "--seed"): "it was removed: the same episodes are always played",
    ("env doctor", "--split"): "it was removed: tasks of split dev are played",
    ("env list", "--json"): NO_JSON,
    ("env show", "--json"): NO_JSON,
    ("eval", "--without"): IN_SERVED_SETTING,
    ("experiment", "--seeds"): "it was removed: write the seeds into the file, seeds = [0, 1]",
    ("fidelity", "--compare"): "give --model twice: --model A --model B",
    ("fidelity", "--encoder"): ENCODER,
    ("fidelity", "--gamma"): "it was removed: the bound takes 1 - 1 / max_steps of the environment",
    ("fidelity", "--json"): "give --out FOLDER: it gets report.json",
    ("fidelity", "--kl"): "it was removed: the bound is that of the model alone, without a policy step",
    ("fidelity", "--known"): "it was removed: in Python there is `dreamgym.runs.fidelity.fidelity(known=…)`",
    ("fidelity", "--parallel"): "it was removed: in Python there is `dreamgym.runs.fidelity.fidelity(parallel=…)`",
    ("fidelity", "--price-in"): PRICE,
    ("fidelity", "--price-out"): PRICE,
    ("fidelity", "--real-parallel"): "it is --cost real_parallel=NUMBER now",
    ("fidelity", "--real-price"): "it is --cost real_price=NUMBER now",
    ("fidelity", "--real-seconds"): "it is --cost real_seconds=NUMBER now",
    ("fidelity", "--without"): IN_SETTING,
    ("fidelity", "-k"): IN_SETTING,
    ("fit", "--batch"): "it was removed: an update learns 16 rows, over all processes",
    ("fit", "--micro-batch"): "it was removed: a process computes 8 rows at once",
    ("fit", "--patience"): "it was removed: a fit ends after 4 measurements without a lower held-out loss",
    ("fit", "--without"): IN_BASE,
    ("fit", "-k"): IN_BASE,
    ("import", "--format"): "write the format before the files: dreamgym import openai chats.jsonl --env crm/",
    ("play", "--policy-url"): POLICY_URL,
    ("play", "--seed"): "it was removed: `dreamgym collect` plays with other seeds",
    ("play", "--split"): "it was removed: --task ID names a task of any split",
    ("record", "--idle-s"): "it was removed: after 300 s of silence a call at the bare URL begins a new run",
    ("record", "--stdio"): "it was removed: record uses stdio by itself if it is started with a pipe on standard input",
    ("serve", "--encoder"): ENCODER,
    ("serve", "--env"): "write the environment without it: serve crm/",
    ("serve", "--without"): IN_SERVED_SETTING,
    ("tasks", "--seed"): "it was removed: the same command again makes other tasks",
}
"""Advice for each removed option, by verb and option."""


def refuse_old_options(arguments: Sequence[str]) -> None:
    """Raises InvalidInput for an option that the verb no longer has. The message says what to do instead.

    Args:
        arguments: arguments of the program, the verb first.
    """
    verbs = [" ".join(arguments[:words]) for words in (1, 2)]
    for word in arguments[1:]:
        option = word.partition("=")[0]
        if option == "--":
            return
        for verb in verbs:
            if (verb, option) in OLD:
                raise InvalidInput(f"{option}: {OLD[verb, option]}")
