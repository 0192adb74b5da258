"""The environment folder of a recorded MCP server: the recorder starts it, and it can be built again at any time.

Everything but env.toml is derived from `recordings/`, so building twice gives the same files. What a person writes
into env.toml, adds to tasks.jsonl or edits in trajectories.jsonl stays.
"""

from dreamgym.recordings.folder.build import FolderReport, build_folder, is_recorded, update_folder
from dreamgym.recordings.folder.env_file import name_for, start_folder

__all__ = ["FolderReport", "build_folder", "is_recorded", "name_for", "start_folder", "update_folder"]
