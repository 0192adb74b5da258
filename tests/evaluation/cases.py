"""Hand-made comparisons of a recorded call with its prediction."""

from __future__ import annotations

from pydantic import JsonValue

from dreamgym.evaluation.calls import Compared
from dreamgym.state import as_text
from dreamgym.types import JsonObject, Provenance, StepResult, Tier, ToolCall, Transition

ACTION = ToolCall(name="move", arguments={"to": "b"})


def world(**fields: JsonValue) -> str:
    """The text of a state with one thing that has these fields."""
    return as_text({"things": {"t": {"id": "t", **fields}}})


def case(
    before: str,
    after: str,
    predicted: str | None,
    *,
    trajectory: str = "one",
    step: int = 1,
    action: ToolCall = ACTION,
    recorded: StepResult | None = None,
    got: StepResult | None = None,
    features: tuple[float, ...] = (),
    seconds: float = 0.0,
    accomplished: bool | None = None,
    fulfilled: bool = False,
    claimed: bool | None = None,
    **provenance: object,
) -> Compared:
    """A compared step. `predicted` is the predicted next state, None for no answer; `got` is by default `recorded`."""
    real = recorded or StepResult(observation="ok")
    said = got or real
    transition = predicted is not None and Transition(
        state=before,
        action=action,
        result=said,
        next_state=predicted,
        provenance=Provenance.model_validate({"tier": Tier.MODEL, **provenance}),
    )
    return Compared(
        trajectory=trajectory,
        step=step,
        action=action,
        recorded=real,
        got=said if predicted is not None else None,
        failure=None if predicted is not None else "no idea",
        before=before,
        after=after,
        accomplished=accomplished,
        fulfilled=fulfilled,
        claimed=claimed,
        predicted=transition or None,
        features=features,
        seconds=seconds,
    )


def refusal(words: str) -> StepResult:
    return StepResult(observation=words, is_error=True)


def structured(**content: JsonValue) -> StepResult:
    info: JsonObject = {"structured": content}
    return StepResult(observation="see structured", info=info)
