"""Learning from recordings alone, in the form in which the user's agent would have seen them."""

from pathlib import Path

import pytest
import torch
from dreamgym_integrations.trainers.policy.model import load_chat_policy, load_policy
from dreamgym_integrations.trainers.policy.replay_through_agent import RecordedEnvironment, replay_through_agent
from dreamgym_integrations.trainers.policy.sft import conversation_row
from dreamgym_integrations.trainers.policy.tiny import create_tiny_policy
from dreamgym_server.sources import RealWorlds

from dreamgym.embedding import load_encoder
from dreamgym.environment import EnvironmentSpec, load_spec, read_jsonl
from dreamgym.episode import load_agent
from dreamgym.errors import InvalidInput
from dreamgym.replay.postgres import open_store
from dreamgym.runs.opening import served
from dreamgym.runs.train.config import TrainConfig
from dreamgym.runs.train.recorded import learn_from_recordings
from dreamgym.types import Trajectory

pytestmark = pytest.mark.anyio
COIN = Path(__file__).parents[2] / "examples" / "coin"


@pytest.fixture(scope="module")
def spec() -> EnvironmentSpec:
    return load_spec(str(COIN))


@pytest.fixture(scope="module")
def recordings() -> list[Trajectory]:
    return [one for one in read_jsonl(COIN / "trajectories.jsonl", Trajectory) if one.success][:6]


@pytest.fixture(scope="module")
def base(recordings: list[Trajectory], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy") / "base"
    create_tiny_policy(recordings, folder, seed=0)
    return folder


@pytest.fixture
async def seeded(dsn: str, recordings: list[Trajectory]) -> str:
    store = await open_store(dsn, load_encoder(None))
    await store.buffer.add(recordings)
    await store.close()
    return dsn


async def test_an_adapter_learns_the_agents_conversations_and_a_whole_policy_is_saved(
    spec: EnvironmentSpec,
    recordings: list[Trajectory],
    base: Path,
    seeded: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    how = {"lora": 4, "steps": 8, "batch": 4, "accumulate": 2, "learning_rate": 1e-2}
    config = TrainConfig.model_validate({"policy": str(base), "algorithm": "sft", "agent": "react", **how})
    await learn_from_recordings(spec, config, base, tmp_path / "taught", seeded)
    before, saved, _ = "".join(capsys.readouterr()).partition("policy saved")
    assert saved
    assert "memory for the longest episodes: about" in before
    async with served(RealWorlds(spec, lambda: RecordedEnvironment(spec, recordings))) as url:
        segments = await replay_through_agent(load_agent("react"), load_chat_policy(base)[1], spec, recordings, url=url)
    rows = [conversation_row(segment) for segment in segments]
    assert len(rows) == len(recordings)
    assert loss(tmp_path / "taught", rows) < 0.8 * loss(base, rows)
    before, after = (load_policy(folder)[0].model.state_dict() for folder in (base, tmp_path / "taught"))
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all("proj" in name for name in changed), "an adapter stands beside linear layers alone"


async def test_recordings_of_test_tasks_are_not_imitated(
    spec: EnvironmentSpec, recordings: list[Trajectory], base: Path, dsn: str, tmp_path: Path
) -> None:
    tested = {"metadata": {**recordings[0].task.metadata, "split": "test"}}
    store = await open_store(dsn, load_encoder(None))
    await store.buffer.add([recordings[0].model_copy(update={"task": recordings[0].task.model_copy(update=tested)})])
    await store.close()
    config = TrainConfig.model_validate({"policy": str(base), "algorithm": "sft"})
    with pytest.raises(InvalidInput, match="1 recorded episodes of 'coin', of which 1 are of another split than train"):
        await learn_from_recordings(spec, config, base, tmp_path / "taught", dsn)


async def test_a_recording_of_a_test_task_is_not_imitated_even_if_it_names_no_split(
    spec: EnvironmentSpec, recordings: list[Trajectory], base: Path, seeded: str, tmp_path: Path
) -> None:
    tested = [one.task.model_copy(update={"metadata": {"split": "test"}}) for one in recordings]
    config = TrainConfig.model_validate({"policy": str(base), "algorithm": "sft"})
    with pytest.raises(InvalidInput, match="6 recorded episodes of 'coin', of which 6 are of another split than train"):
        await learn_from_recordings(
            spec.model_copy(update={"tasks": tuple(tested)}), config, base, tmp_path / "taught", seeded
        )


async def test_recordings_without_a_success_are_told_from_no_recordings(
    spec: EnvironmentSpec, recordings: list[Trajectory], base: Path, dsn: str, tmp_path: Path
) -> None:
    config = TrainConfig.model_validate({"policy": str(base), "algorithm": "sft"})
    with pytest.raises(InvalidInput, match="no recorded step of 'coin' to learn from: run `dreamgym collect`"):
        await learn_from_recordings(spec, config, base, tmp_path / "taught", dsn)
    store = await open_store(dsn, load_encoder(None))
    await store.buffer.add([one.model_copy(update={"transitions": one.transitions[:-1]}) for one in recordings])
    await store.close()
    with pytest.raises(InvalidInput, match="no success to imitate in 6 recorded episodes of 'coin', of which 0 are"):
        await learn_from_recordings(spec, config, base, tmp_path / "taught", dsn)


def loss(folder: Path, rows: list[dict[str, list[int]]]) -> float:
    policy, _ = load_policy(folder)
    with torch.inference_mode():
        losses = [
            policy.model(torch.tensor([row["input_ids"]]), labels=torch.tensor([row["labels"]])).loss.item()
            for row in rows
        ]
    return float(sum(losses) / len(losses))
