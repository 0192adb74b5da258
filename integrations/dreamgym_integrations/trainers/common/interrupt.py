"""Ctrl-C during training: the first one saves and stops after the running update, the second one stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback


class Interrupt(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Saves and stops at the end of the update in which Ctrl-C was pressed.

    Args:
        steps_per_update: number of optimiser steps of one update.
    """

    pressed = False
    """True if Ctrl-C was pressed."""

    def __init__(self, steps_per_update: int) -> None:
        self._steps_per_update = steps_per_update

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Make the trainer save and stop if Ctrl-C was pressed and an update is complete."""
        if self.pressed and state.global_step % self._steps_per_update == 0:
            control.should_save = control.should_training_stop = True


@contextmanager
def interruptible(trainer: Any, *, steps_per_update: int = 1) -> Iterator[Interrupt]:
    """Let Ctrl-C end the training in the block after the running update, with its state saved.

    With several processes this does nothing, since they would not stop at the same update: the launcher handles Ctrl-C.
    """
    interrupt = Interrupt(steps_per_update)
    is_main = threading.current_thread() is threading.main_thread()  # Python sets signal handlers only there
    if trainer.accelerator.num_processes > 1 or not is_main:
        yield interrupt
        return

    def stop(number: int, frame: object) -> None:
        interrupt.pressed = True
        signal.signal(signal.SIGINT, before)

    trainer.add_callback(interrupt)
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
