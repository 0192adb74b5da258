"""DreamGym: train and test LLM agents against a simulated environment that speaks MCP.

All names are imported at their first use. So `import dreamgym` loads only the standard library, and Ctrl-C while a
command begins falls into the import that its entry point watches.

    async with dreamgym.open_worlds("coin", against="dream", model="nearest") as worlds:
        environment = worlds.create("mine")

`check`, `compare`, `fit` and `train` are no coroutines: each runs an event loop of its own until it is done. Where one
already runs, as in a notebook, call them in a thread: `await asyncio.to_thread(dreamgym.check, "crm", "dream")`.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dreamgym.dream.environment import DreamEnvironment
    from dreamgym.dream.load import load_model
    from dreamgym.environment import Environment, EnvironmentSpec, RealEnvironment, load_spec
    from dreamgym.errors import DreamGymError
    from dreamgym.replay.memory import MemoryBuffer
    from dreamgym.runs.collect import collect
    from dreamgym.runs.evaluate import evaluate
    from dreamgym.runs.experiment.compare import compare
    from dreamgym.runs.fidelity import check
    from dreamgym.runs.fit import fit
    from dreamgym.runs.opening import open_store, open_worlds, served
    from dreamgym.runs.serve import serving
    from dreamgym.runs.train.config import TrainConfig
    from dreamgym.runs.train.run import train
    from dreamgym.testing import check_environment, check_replay_buffer
    from dreamgym.types import (
        Origin,
        Provenance,
        Source,
        StepResult,
        StopReason,
        Task,
        Tier,
        ToolCall,
        Trajectory,
        Transition,
    )

__version__ = "0.1.0"

# These packages report their use over the network unless the variable is set when they are imported: onnxruntime,
# which also leaves a device id in the user's cache, and huggingface_hub, which TRL, transformers and datasets use.
for _switch in ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY"):
    os.environ.setdefault(_switch, "1")

_WHERE = {
    "DreamEnvironment": "dreamgym.dream.environment",
    "DreamGymError": "dreamgym.errors",
    "Environment": "dreamgym.environment",
    "EnvironmentSpec": "dreamgym.environment",
    "MemoryBuffer": "dreamgym.replay.memory",
    "Origin": "dreamgym.types",
    "Provenance": "dreamgym.types",
    "RealEnvironment": "dreamgym.environment",
    "Source": "dreamgym.types",
    "StepResult": "dreamgym.types",
    "StopReason": "dreamgym.types",
    "Task": "dreamgym.types",
    "Tier": "dreamgym.types",
    "ToolCall": "dreamgym.types",
    "TrainConfig": "dreamgym.runs.train.config",
    "Trajectory": "dreamgym.types",
    "Transition": "dreamgym.types",
    "check": "dreamgym.runs.fidelity",
    "check_environment": "dreamgym.testing",
    "check_replay_buffer": "dreamgym.testing",
    "collect": "dreamgym.runs.collect",
    "compare": "dreamgym.runs.experiment.compare",
    "evaluate": "dreamgym.runs.evaluate",
    "fit": "dreamgym.runs.fit",
    "load_model": "dreamgym.dream.load",
    "load_spec": "dreamgym.environment",
    "open_store": "dreamgym.runs.opening",
    "open_worlds": "dreamgym.runs.opening",
    "served": "dreamgym.runs.opening",
    "serving": "dreamgym.runs.serve",
    "train": "dreamgym.runs.train.run",
}
"""Module of each name that is imported when it is first used."""

__all__ = [
    "DreamEnvironment",
    "DreamGymError",
    "Environment",
    "EnvironmentSpec",
    "MemoryBuffer",
    "Origin",
    "Provenance",
    "RealEnvironment",
    "Source",
    "StepResult",
    "StopReason",
    "Task",
    "Tier",
    "ToolCall",
    "TrainConfig",
    "Trajectory",
    "Transition",
    "__version__",
    "check",
    "check_environment",
    "check_replay_buffer",
    "collect",
    "compare",
    "evaluate",
    "fit",
    "load_model",
    "load_spec",
    "open_store",
    "open_worlds",
    "served",
    "serving",
    "train",
]


def __getattr__(name: str) -> object:
    if name in {"environment", "errors", "types"}:  # so that dreamgym.errors.InvalidInput needs no import of its own
        return import_module(f"dreamgym.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'dreamgym' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return __all__
