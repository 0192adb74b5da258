"""Prints how much memory learning takes, before it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dreamgym.runs.console import say

if TYPE_CHECKING:
    from dreamgym_integrations.trainers.policy.memory import Memory


def say_memory(memory: Memory | None) -> None:
    """Print the memory that learning takes and, if less is free, what to do; print nothing for a small policy."""
    from dreamgym_integrations.trainers.policy.memory import free

    if memory is None:
        return
    say(f"memory for the longest episodes: {memory}")
    room = free()
    if room is not None and memory.total > room:
        less = "raise accumulate, lower episode_tokens, or set gradient_checkpointing, bf16 or lora"
        say(f"    {room / 2**30:.1f} GiB are free: if it does not fit, {less}")
