"""Settings that `dreamgym train` once had: what to do instead, and the values that are fixed now.

A stored run contains all its settings, including old ones. If each old one has the value that is fixed now, the run
counts as made with the same settings.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from dreamgym.types import JsonObject

OLD_SETTINGS: dict[str, tuple[JsonValue, str]] = {
    "band": ([0.2, 0.8], "it was removed: the strategy band prefers tasks with a success from 0.2 to 0.8"),
    "vary": (2, "it was removed: two tasks are varied after each update, or none with share = 0"),
    "state_credit": (0.0, "it was removed: it did not help, see docs/results.md"),
    "observation_loss": (0.0, "it was removed: it did not help, see docs/results.md"),
    "imitate": (0, "it was removed: it did not help, see docs/results.md"),
    "then_rate": (0.3, "it was removed: the following stage begins with 0.3 of the learning rate"),
    "episode_limit_s": (600.0, "it was removed: an agent has an hour for an episode"),
    "ppo.discount": (1.0, "it was removed: rewards are not discounted within an episode"),
    "ppo.decay": (0.95, "it was removed: lambda of the generalised advantage estimate is 0.95"),
    "ppo.value_clip": (0.2, "it was removed: the value loss is clipped at 0.2"),
    "ppo.value_coefficient": (0.1, "it was removed: the value loss weighs 0.1 of the policy loss"),
}
"""Dotted name to the value that is fixed now, and the message to a user who sets it."""


def refuse_old_settings(settings: Mapping[str, object], table: str = "") -> None:
    """Raises ValueError for a setting that is gone; the message contains what is done instead.

    Args:
        settings: by name.
        table: prefix of the names in OLD_SETTINGS, such as `ppo.`.
    """
    for name in settings:
        if f"{table}{name}" in OLD_SETTINGS:
            raise ValueError(f"{table}{name}: {OLD_SETTINGS[f'{table}{name}'][1]}")


def without_old_settings(settings: JsonObject) -> JsonObject:
    """The settings of a stored run without the old ones whose effect is the same as what is done now."""
    is_old = {
        name: value == OLD_SETTINGS[name][0] or (name == "vary" and settings.get("share") == 0)
        for name, value in settings.items()
        if name in OLD_SETTINGS
    }
    kept = {name: value for name, value in settings.items() if not is_old.get(name)}
    if isinstance(ppo := kept.get("ppo"), dict):
        kept["ppo"] = {name: value for name, value in ppo.items() if OLD_SETTINGS.get(f"ppo.{name}", ("",))[0] != value}
    return kept
