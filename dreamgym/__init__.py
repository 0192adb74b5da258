"""DreamGym: train and test LLM agents against a simulated environment that speaks MCP.

The core knows no server, no agent framework and no trainer. Importing it costs pydantic and the standard library.
"""

import os

from dreamgym.environment import Environment, EnvironmentSpec, RealEnvironment
from dreamgym.errors import DreamGymError
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

# packages that report their use over the network read this when they are imported: onnxruntime, which also leaves a
# device's id in the user's cache, and huggingface_hub, for TRL, transformers and datasets
for _switch in ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY"):
    os.environ.setdefault(_switch, "1")

__all__ = [
    "DreamGymError",
    "Environment",
    "EnvironmentSpec",
    "Origin",
    "Provenance",
    "RealEnvironment",
    "Source",
    "StepResult",
    "StopReason",
    "Task",
    "Tier",
    "ToolCall",
    "Trajectory",
    "Transition",
    "__version__",
]
