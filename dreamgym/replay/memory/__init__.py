"""The replay buffer and the episode store in memory, for tests, notebooks and comparisons.

They keep the same promises as the PostgreSQL ones and pass the same contract suite. Nothing survives the process.
"""

from dreamgym.replay.memory.buffer import MemoryBuffer
from dreamgym.replay.memory.episodes import MemoryEpisodeStore

__all__ = ["MemoryBuffer", "MemoryEpisodeStore"]
