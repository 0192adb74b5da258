"""DreamGym: train and test LLM agents against a simulated environment that speaks MCP.

The core knows no server, no agent framework and no trainer. Importing it costs pydantic and the standard library.
"""

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
    TrajectoryGroup,
    Transition,
)

__version__ = "0.1.0"

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
    "TrajectoryGroup",
    "Transition",
    "__version__",
]
