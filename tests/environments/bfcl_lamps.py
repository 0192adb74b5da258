"""An invented API class in the style of BFCL, with its docs and one conversation, for tests without the package."""

from decimal import getcontext

from dreamgym_integrations.environments.bfcl.state import Kind, System
from dreamgym_integrations.environments.bfcl.suite import Suite, conversation_of, parameters_of

from dreamgym.types import JsonObject


class Lamps:
    """Lamps by name, a count of presses, and a private log that is never compared."""

    def __init__(self) -> None:
        self.lamps: dict[str, dict[str, object]] = {}
        self.presses = 0
        self._log: list[str] = []

    def _load_scenario(self, scenario: dict[str, dict[str, dict[str, object]]]) -> None:
        self.lamps = scenario["lamps"]

    def press(self, lamp: str, times: int = 1) -> dict[str, object]:
        if lamp not in self.lamps:
            return {"error": f"no lamp {lamp}"}
        self.presses += times
        self._log.append(lamp)
        self.lamps[lamp]["lit"] = bool(self.presses % 2)
        return {"lit": self.lamps[lamp]["lit"]}

    def count(self) -> dict[str, int]:
        return {"presses": self.presses}

    def names(self) -> list[str]:
        return list(self.lamps)

    def forget(self) -> None:
        self._log.clear()

    def coarse(self) -> dict[str, int]:
        getcontext().prec = 2
        return {"precision": getcontext().prec}

    def explode(self) -> None:
        raise ValueError("smoke")


def doc(name: str, response: JsonObject | None = None, **parameters: JsonObject) -> JsonObject:
    """Describe a function as BFCL does; each parameter without a default is required."""
    required = [one for one, described in parameters.items() if "default" not in described]
    return {
        "name": name,
        "description": f"Tool description: {name}.",
        "parameters": {"type": "dict", "properties": dict(parameters), "required": list(required)},
        **({} if response is None else {"response": {"type": "dict", "properties": response}}),
    }


DOCS = [
    doc(
        "press",
        {"lit": {"type": "boolean", "description": "Whether it is lit."}},
        lamp={"type": "string", "description": 'Which. [Enum]: ["red", "green", "blue"]'},
        times={"type": "integer", "description": "How often.", "default": 1},
    ),
    doc("count", {"presses": {"type": "integer", "description": "All presses."}}),
    doc("names"),
    doc("forget"),
    doc("explode"),
]
CONVERSATION: JsonObject = {
    "id": "lamps_0",
    "question": [
        [{"role": "user", "content": "Light the red lamp."}],
        [{"role": "user", "content": "How many presses were that?"}],
    ],
    "initial_config": {"Lamps": {"lamps": {"red": {"lit": False}, "green": {"lit": False}}}},
    "involved_classes": ["Lamps"],
    "excluded_function": ["explode"],
}
SYSTEMS = {
    "Lamps": System("house", {"presses": "integer", "_log": "array"}, {"lamps": Kind("lamps", "lamp", {"lit": "any"})})
}


def lamp_suite() -> Suite:
    """Return a suite of one conversation, whose ground truth is `press('red')`, then `count()`."""
    parameters = {str(one["name"]): parameters_of(one) for one in DOCS}
    conversation = conversation_of(CONVERSATION, [["press('red')"], ["count()"]], parameters)
    return Suite({conversation.id: conversation}, {"Lamps": DOCS}, lambda _: Lamps())
