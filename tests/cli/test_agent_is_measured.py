"""If an agent is trained, the agent is measured in the real environment, and its measured episodes are not stored."""

import json
import shutil
from pathlib import Path

import anyio
import pytest
from billing import billing
from command_line import Command
from dreamgym_integrations.trainers.policy.tiny import create_tiny_policy

from dreamgym.embedding import load_encoder
from dreamgym.environment import load_real, load_spec, read_jsonl
from dreamgym.replay.postgres import open_store
from dreamgym.runs.evaluate import evaluate
from dreamgym.runs.experiment.plan import Arm, Measured, Plan, Play
from dreamgym.runs.experiment.prepared import Prepared
from dreamgym.runs.experiment.running import _measured
from dreamgym.training.record import read_record
from dreamgym.types import Source, Trajectory

COIN = Path(__file__).parents[2] / "examples" / "coin"
AGENT = '''
from mcp import Client
from openai import AsyncOpenAI


async def play(task, mcp_url, policy_url):
    """Asks the policy, and takes the coin whatever it says."""
    async with AsyncOpenAI(base_url=policy_url, api_key="none") as policy, Client(mcp_url) as environment:
        await policy.chat.completions.create(model="m", messages=[{"role": "user", "content": task}])
        await environment.call_tool("act", {"command": "take coin"})
    return "done"
'''


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "policy"
    create_tiny_policy(read_jsonl(COIN / "trajectories.jsonl", Trajectory)[:4], folder, seed=0)
    return folder


@pytest.fixture
def agent(tmp_path: Path) -> str:
    file = tmp_path / "taker.py"
    file.write_text(AGENT)
    return f"{file}:play"


def stored(dsn: str) -> list[Trajectory]:
    async def read() -> list[Trajectory]:
        store = await open_store(dsn, load_encoder(None))
        found = await store.buffer.trajectories("coin", sources=frozenset(Source))
        await store.close()
        return list(found)

    return anyio.run(read)


def test_eval_plays_the_agent_and_stores_nothing(dreamgym: Command, dsn: str, policy: Path, agent: str) -> None:
    assert dreamgym("seed", str(COIN), str(COIN / "trajectories.jsonl"))[0] == 0
    before = len(stored(dsn))
    usual = ("eval", str(COIN), "--policy", str(policy), "--episodes", "5", "--json")
    alone = json.loads(dreamgym(*usual, "--against", "real")[1])
    assert alone["mean_steps"] > 1
    assert alone["tasks"] == [task.id for task in load_real("coin").tasks("test")[-5:]]
    assert alone["outcomes"].count(1.0) == round(5 * alone["success"]["mean"])
    for where in (("real",), ("dream", "--model", "nearest", "--split", "train")):
        code, out, err = dreamgym(*usual, "--against", *where, "--agent", agent)
        assert code == 0, err
        assert (json.loads(out)["mean_steps"], json.loads(out)["success"]["n"]) == (1, 5)
    assert len(stored(dsn)) == before


def test_tasks_without_a_split_are_reported_because_they_may_have_been_trained_on(
    dreamgym: Command, dsn: str, policy: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "coin"
    shutil.copytree(COIN, folder)
    (folder / "env.toml").write_text('name = "coin"\n')
    dream = ("--against", "dream", "--model", "nearest")
    usual = ("eval", str(folder), "--policy", str(policy), "--episodes", "1", *dream)
    told = "20 of 20 tasks have no metadata.split: they belong to every split, so the policy may have been trained on"
    assert "metadata.split" not in dreamgym(*usual, "--split", "train")[2]
    tasks = folder / "tasks.jsonl"
    tasks.write_text(tasks.read_text().replace(',"split":"train"', ""))
    assert told in dreamgym(*usual)[2]


DOWN = """
from dreamgym import EnvironmentSpec, Task
from dreamgym.errors import EnvironmentUnavailable


class Down:
    tools = ({"name": "act", "inputSchema": {"type": "object", "properties": {"command": {"type": "string"}}}},)
    spec = EnvironmentSpec(name="down", tools_list=({"tools": list(tools)},))
    behaviours = {}

    def __init__(self, options):
        pass

    def tasks(self, split):
        return [Task(id="t", env="down", instruction="Wait.")]

    def create(self):
        return self

    async def reset(self, task, *, seed=None):
        raise EnvironmentUnavailable("the server is down")

    async def close(self):
        pass
"""


def test_the_success_of_a_policy_whose_episodes_all_failed_is_unknown(
    dreamgym: Command, policy: Path, tmp_path: Path
) -> None:
    (tmp_path / "down.py").write_text(DOWN)
    env = f"{tmp_path / 'down.py'}:Down"
    code, out, err = dreamgym("eval", env, "--policy", str(policy), "--against", "real")
    assert code == 1, err
    assert out.splitlines()[0] == f"success unknown over 0 episodes of {env} (real, test)"
    assert "1 episodes failed because of the environment and are not counted: EnvironmentUnavailable: the server" in out


def test_an_error_of_a_real_environment_fails_its_episode_and_is_redacted(
    dreamgym: Command, policy: Path, tmp_path: Path
) -> None:
    crash = DOWN.replace('EnvironmentUnavailable("the server is down")', 'KeyError("ada.byron@analytical.org")')
    rules = crash.replace("from dreamgym.errors", "from dreamgym.redaction import RedactionRules\nfrom dreamgym.errors")
    (tmp_path / "down.py").write_text(rules.replace('name="down"', 'name="down", redact=RedactionRules()'))
    code, out, err = dreamgym("eval", f"{tmp_path / 'down.py'}:Down", "--policy", str(policy), "--against", "real")
    assert code == 1, err
    assert "1 episodes failed because of the environment and are not counted: KeyError: " in out
    assert "ada.byron" not in out + err


@pytest.mark.anyio
@pytest.mark.usefixtures("dsn")
async def test_a_model_never_sees_what_is_redacted_in_the_recordings(policy: Path, tmp_path: Path) -> None:
    env = tmp_path / "coin"
    shutil.copytree(COIN, env)
    without_reality = (env / "env.toml").read_text().replace('[real]\nadapter = "coin"', "[redact]\nsecrets = true")
    (env / "env.toml").write_text(without_reality)
    described = (env / "tasks.jsonl").read_text().replace("Search the house", "Search for ada.byron@analytical.org")
    (env / "tasks.jsonl").write_text(described)
    prompts: list[str] = []

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        return "no answer"

    async with billing(answer) as (url, _):
        model = f"{url} without recorded,effects,views"
        result = await evaluate(str(env), policy, "dream", split="train", episodes=1, model=model)
    assert (result.failed, result.success.n) == (1, 0)
    assert any("Search for" in prompt for prompt in prompts)
    assert "ada.byron" not in "".join(prompts)


def test_an_agent_in_training_is_probed_and_its_probes_are_not_stored(
    dreamgym: Command, dsn: str, policy: Path, agent: str, tmp_path: Path
) -> None:
    assert dreamgym("seed", str(COIN), str(COIN / "trajectories.jsonl"))[0] == 0
    before = {trajectory.id for trajectory in stored(dsn)}
    out = tmp_path / "run"
    sizes = ("--steps", "1", "--groups", "1", "--group-size", "2", "--probe", "6")
    rest = ("--policy", str(policy), "--agent", agent, "--model", "nearest")
    code, _, err = dreamgym("train", str(COIN), *sizes, *rest, "--out", str(out))
    assert code == 0, err
    record = read_record(out / "metrics.jsonl")
    probes = [line for line in record if "real_success" in line]
    assert [(line["step"], line["real_episodes"], line["real_steps"]) for line in probes] == [(0, 6, 6), (1, 6, 6)]
    new = [trajectory for trajectory in stored(dsn) if trajectory.id not in before]
    assert {trajectory.source for trajectory in new} == {Source.SYNTHETIC}, "the policy does not learn from probes"
    assert all(len(trajectory.transitions) == 1 for trajectory in new)


@pytest.mark.anyio
async def test_an_arm_that_trains_an_agent_is_measured_with_it(policy: Path, agent: str, tmp_path: Path) -> None:
    plan = Plan(
        title="T",
        env="coin",
        seeds=(0,),
        recorded=(Play(behaviour="noisy", episodes=1, tasks=1, warm=True),),
        test=Measured(episodes=5),
        arm=(Arm(name="agent", train={"agent": agent}), Arm(name="alone", train={})),
    )
    prepared = Prepared(plan, 0, tmp_path, "", load_spec("coin"), load_real("coin"))
    played = {arm.name: await _measured(prepared, arm, policy.parent) for arm in plan.arm}
    assert played["agent"].steps == 5
    assert played["alone"].steps > 5
