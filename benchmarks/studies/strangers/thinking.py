"""`@modelcontextprotocol/server-sequential-thinking`: one tool that counts thoughts and names branches.

Every answer shows what the session has noted so far, so every call is a write and a read.
"""

from __future__ import annotations

from public_server import Kind, Plan, Server, Session, call
from pydantic import JsonValue

from dreamgym.types import ToolCall


def think(thought: str, number: int, total: int, *, more: bool = True, **others: JsonValue) -> ToolCall:
    return call(
        "sequentialthinking",
        thought=thought,
        thoughtNumber=number,
        totalThoughts=total,
        nextThoughtNeeded=more,
        **others,
    )


LENGTH = r'"thoughtHistoryLength": (\d+)'

PLANS = (
    Plan(
        "name-the-boat",
        "Think in three steps about a name for the boat. How many thoughts are noted?",
        (
            think("It should be short", 1, 3),
            think("It should be a bird", 2, 3),
            think("Tern", 3, 3, more=False),
        ),
        LENGTH,
        "3",
    ),
    Plan(
        "one-thought",
        "Note one thought: the tide is high at noon.",
        (think("The tide is high at noon", 1, 1, more=False),),
        LENGTH,
        "1",
    ),
    Plan(
        "revise-route",
        "Plan the route to the island, and think again about the first leg.",
        (
            think("Leave by the north channel", 1, 3),
            think("Turn east at the buoy", 2, 3),
            think("The south channel is safer", 3, 3, more=False, isRevision=True, revisesThought=1),
        ),
        LENGTH,
        "3",
    ),
    Plan(
        "branch-on-fuel",
        "Think about fuel: buy here, or try the branch of buying on the island.",
        (
            think("Buy fuel here", 1, 2),
            think("Buy fuel on the island", 2, 2, more=False, branchFromThought=1, branchId="island"),
        ),
        r'"branches": \[\s*"(\w+)"',
        "island",
    ),
    Plan(
        "more-than-planned",
        "Think about the broken lamp until you know what to do.",
        (
            think("Is it the bulb?", 1, 2),
            think("No, it is new", 2, 2),
            think("So it is the wire", 3, 2, more=False, needsMoreThoughts=True),
        ),
        r'"totalThoughts": (\d+)',
        "3",
    ),
    Plan(
        "forgot-the-number",
        "Note that the rope is worn.",
        (
            call("sequentialthinking", thought="The rope is worn"),
            think("The rope is worn", 1, 1, more=False),
        ),
        LENGTH,
        "1",
    ),
    Plan(
        "two-branches",
        "Compare sailing and rowing in two branches.",
        (
            think("How do we get there?", 1, 3),
            think("Sail", 2, 3, branchFromThought=1, branchId="sail"),
            think("Row", 3, 3, more=False, branchFromThought=1, branchId="row"),
        ),
        r'"branches": \[\s*"\w+",\s*"(\w+)"',
        "row",
    ),
    Plan(
        "number-zero",
        "Begin counting your thoughts at zero, if you can.",
        (
            think("Start at zero", 0, 2),
            think("Start at one", 1, 2),
            think("Done", 2, 2, more=False),
        ),
        LENGTH,
        "2",
    ),
    Plan(
        "crew",
        "Who should be in the crew? Think in four steps.",
        (
            think("Ada knows the stars", 1, 4),
            think("Boris can cook", 2, 4),
            think("Clara mends sails", 3, 4),
            think("All three", 4, 4, more=False),
        ),
        LENGTH,
        "4",
    ),
    Plan(
        "weather",
        "Think twice whether to leave today.",
        (think("The wind is strong", 1, 2), think("We wait", 2, 2, more=False)),
        LENGTH,
        "2",
    ),
)

SESSIONS = (
    Session(
        "two-thoughts",
        Kind.READ_AFTER_WRITE,
        (think("Count the sails", 1, 2), think("There are four", 2, 2, more=False)),
    ),
    Session(
        "five-thoughts",
        Kind.READ_AFTER_WRITE,
        (
            think("Where is the map?", 1, 5),
            think("Not in the cabin", 2, 5),
            think("Not on deck", 3, 5),
            think("Perhaps ashore", 4, 5),
            think("Ask the harbour master", 5, 5, more=False),
        ),
    ),
    Session(
        "branch-paint",
        Kind.READ_AFTER_WRITE,
        (
            think("Which colour?", 1, 3),
            think("Blue", 2, 3, branchFromThought=1, branchId="blue"),
            think("Blue it is", 3, 3, more=False),
        ),
    ),
    Session(
        "three-branches",
        Kind.READ_AFTER_WRITE,
        (
            think("Which port?", 1, 4),
            think("Bergen", 2, 4, branchFromThought=1, branchId="bergen"),
            think("Oban", 3, 4, branchFromThought=1, branchId="oban"),
            think("Cork", 4, 4, more=False, branchFromThought=1, branchId="cork"),
        ),
    ),
    Session(
        "grows",
        Kind.READ_AFTER_WRITE,
        (think("Is the pump dry?", 1, 1), think("No", 2, 1), think("Then run it", 4, 2, more=False)),
    ),
    Session(
        "revise-twice",
        Kind.READ_AFTER_WRITE,
        (
            think("Paint first", 1, 4),
            think("Sand first", 2, 4, isRevision=True, revisesThought=1),
            think("Wash first", 3, 4, isRevision=True, revisesThought=2),
            think("Wash, sand, paint", 4, 4, more=False),
        ),
    ),
    Session(
        "same-branch-again",
        Kind.READ_AFTER_WRITE,
        (
            think("Night watch?", 1, 3),
            think("Two hours each", 2, 3, branchFromThought=1, branchId="watch"),
            think("Three hours each", 3, 3, more=False, branchFromThought=1, branchId="watch"),
        ),
    ),
    Session(
        "starts-at-three",
        Kind.READ_AFTER_WRITE,
        (think("Third of all", 3, 6), think("Fourth of all", 4, 6), think("Enough", 5, 6, more=False)),
    ),
    Session(
        "same-thought-twice",
        Kind.READ_AFTER_WRITE,
        (think("Is it still raining?", 1, 2), think("Is it still raining?", 1, 2), think("No", 2, 2, more=False)),
    ),
    Session(
        "refusal-in-between",
        Kind.READ_AFTER_WRITE,
        (
            think("Lower the boat", 1, 2),
            call("sequentialthinking", thought="Wait", thoughtNumber=2),
            think("Row ashore", 2, 2, more=False),
        ),
    ),
    Session(
        "long-plan",
        Kind.NEW_ARGUMENTS,
        (think("There are many ways", 1, 12), think("Take the shortest", 2, 9), think("Ask first", 3, 9)),
    ),
    Session(
        "single",
        Kind.NEW_ARGUMENTS,
        (think("The anchor holds", 1, 1, more=False),),
    ),
    Session(
        "branch-at-once",
        Kind.NEW_ARGUMENTS,
        (think("What if it rains?", 1, 2, branchFromThought=1, branchId="rain"), think("Stay in", 2, 2, more=False)),
    ),
    Session(
        "refused",
        Kind.REFUSALS,
        (
            call("sequentialthinking", thought="No number", nextThoughtNeeded=True, totalThoughts=2),
            think("Below zero", -1, 2),
            think("None in all", 1, 0),
            call("sequentialthinking", thoughtNumber=1, totalThoughts=1, nextThoughtNeeded=False),
        ),
    ),
)

SERVER = Server(
    name="think",
    package="npm @modelcontextprotocol/server-sequential-thinking 2026.8.31",
    command=lambda there: (
        "node",
        str(there / "npm/node_modules/@modelcontextprotocol/server-sequential-thinking/dist/index.js"),
    ),
    plans=PLANS,
    sessions=SESSIONS,
    reads=frozenset({"sequentialthinking"}),
    environment={"DISABLE_THOUGHT_LOGGING": "true"},
)
