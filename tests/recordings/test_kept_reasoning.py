"""A folder that is built again keeps the reasoning of a teacher model, although no recording contains it."""

from pathlib import Path

from folder_stage import Tape, crm, trajectories

from dreamgym.recordings.folder import build_folder
from dreamgym.types import Trajectory


def written(folder: Path, *lines: Trajectory) -> None:
    (folder / "trajectories.jsonl").write_text("".join(f"{line.model_dump_json()}\n" for line in lines))


def test_a_folder_that_is_built_again_keeps_the_reasoning_of_its_steps(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    Tape(folder, "a").hello().call("get", "Ada", id="x1")
    build_folder(folder)
    (one,) = trajectories(folder).values()
    traced = one.transitions[0].model_copy(update={"reasoning": "x1 is Ada."})
    written(folder, one.model_copy(update={"transitions": (traced,)}))
    Tape(folder, "b", at=2000).hello().call("get", "Bob", id="x2")
    build_folder(folder)
    assert [each.transitions[0].reasoning for each in trajectories(folder).values()] == ["x1 is Ada.", ""]
