"""A command that asks a model stays within its budget, keeps its results, and resumes with the next budget."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from answers import text_of
from billing import GIVEN, Account, billing
from command_line import Command as InProcess
from dreamgym_client.control import ControlClient
from mcp import Client

from dreamgym.environment import read_jsonl
from dreamgym.prices import PRICE_VARIABLE
from dreamgym.types import Provenance, Source, StepResult, StopReason, Task, Tier, ToolCall, Trajectory, Transition

pytestmark = pytest.mark.anyio

Command = Callable[..., Awaitable[tuple[int, str, str]]]
KEY = "sk-very-secret"
STEPS = 5
ASKED = "without recorded,effects,views"
"""The model is asked for every step."""

LAMPS = """
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import EpisodeFinished
from dreamgym.types import StepResult, Task, ToolCall

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TASKS = [
    Task(id=f"lamp-{n}", env="lamps", instruction=f"Light lamp {n}.", initial_state=f"Lamp {n} is off.")
    for n in range(10)
]


async def press(first, environment, seed):
    result, times = first, 0
    while not result.done and times < 5:
        times += 1
        result = await environment.step(ToolCall(name="press", arguments={"command": f"press {times}"}))


class Lamps:
    behaviours = {"press": press}
    create = None  # only dreams of it are played
    spec = EnvironmentSpec(
        name="lamps", tools_list=({"tools": [{"name": "press", "inputSchema": SCHEMA}]},), tasks=TASKS, max_steps=5
    )

    def __init__(self, options):
        self.spec = self.spec.model_copy(update={"adapter": f"{__file__}:lamps"})

    def tasks(self, split):
        return TASKS


def lamps(options):
    return Lamps(options)
"""


def episode(number: int) -> Trajectory:
    task = Task(id=f"t{number}", env="desk", instruction=f"Find guest {number}.", initial_state="The desk is open.")
    steps = [
        (ToolCall(name="find", arguments={"name": f"guest {number} {at}"}), StepResult(observation=f"Room {at}."))
        for at in range(STEPS)
    ]
    return Trajectory(
        id=f"guest-{number}",
        task=task,
        transitions=tuple(
            Transition(state="", action=call, result=result, next_state="", provenance=Provenance(tier=Tier.REAL))
            for call, result in steps
        ),
        source=Source.REAL,
        stop_reason=StopReason.FINISHED,
    )


@pytest.fixture(autouse=True)
def beside_the_environments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder `desk` with eight recorded episodes, and lamps.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv(PRICE_VARIABLE, GIVEN)
    monkeypatch.setenv("DREAMGYM_ENCODER", "trigram")
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "env.toml").write_text('name = "desk"\n')
    (folder / "tools.json").write_text('{"tools": [{"name": "find", "inputSchema": {"type": "object"}}]}')
    (folder / "trajectories.jsonl").write_text("".join(f"{episode(n).model_dump_json()}\n" for n in range(8)))
    (folder / "tasks.jsonl").write_text("".join(f"{episode(n).task.model_dump_json()}\n" for n in range(8)))
    Path("lamps.py").write_text(LAMPS)


@pytest.fixture
def dreamgym(dreamgym: InProcess) -> Command:
    """The command line in a thread, beside the endpoint."""

    async def command(*arguments: str) -> tuple[int, str, str]:
        return await asyncio.to_thread(dreamgym, *arguments)

    return command


def simulator(prompt: str) -> str:
    """Answers steps, the questions of a judge and a teacher, and the probe of what the endpoint can do."""
    if "overall_plan" in prompt:
        plan = {"overall_plan": "p", "success_mode": "s", "failure_mode": "f"}
        return json.dumps(plan | {f"step_{n}": "It helps." for n in range(1, STEPS + 1)})
    if prompt.startswith("You check whether a software a"):
        return json.dumps({"reasoning": "It is dark.", "accomplished": False})
    plain = {"observation": "click", "state": None, "error": False, "terminated": False, "success": False}
    return json.dumps({"reasoning": "Lamps click.", **plain})


def money_of(err: str) -> float:
    """The dollars that a command reports as spent."""
    found = re.search(r"(?:at least )?([0-9.e-]+) dollars(?:; the budget|$)", err, flags=re.MULTILINE)
    assert found is not None, err
    return float(found[1])


def traced() -> int:
    rows = read_jsonl(Path("desk/trajectories.jsonl"), Trajectory)
    return sum(bool(one.transitions[0].reasoning) for one in rows)


async def test_annotate_keeps_the_traces_that_were_paid_for_and_goes_on_with_another_budget(dreamgym: Command) -> None:
    async with billing(simulator) as (url, account):
        code, _, err = await dreamgym("annotate", "desk", "--model", f"{url}#m", "--budget", "4 calls")
        assert code == 3
        assert err.splitlines()[-1].startswith("dreamgym: the budget of 4 calls is spent. What was stored or written")
        assert (len(account.bills), traced()) == (4, 3)
        code, _, err = await dreamgym("annotate", "desk", "--model", f"{url}#m", "--budget", "5.00")
    assert (code, traced()) == (0, 8)
    assert "spent: 6 calls, " in err
    assert "; the budget was 5.00 dollars" in err
    assert money_of(err) == pytest.approx(Account(account.bills[4:]).dollars, rel=1e-3)
    assert KEY not in err


async def test_collect_keeps_whole_episodes_and_the_same_command_plays_the_others(dreamgym: Command, dsn: str) -> None:
    command = ["collect", f"{Path('lamps.py').resolve()}:lamps", "--agent", "press", "--episodes", "10"]
    command += ["--against", "dream", "--out", "out.jsonl", "--workers", "2"]
    async with billing(simulator) as (url, account):
        code, _, err = await dreamgym(*command, "--model", f"{url}#m", "--budget", "23 calls")
        assert code == 3, err
        assert "dreamgym: the budget of 23 calls is spent" in err
        assert "run the same command again to play the others" in err
        assert len(account.bills) == 23
        kept = read_jsonl(Path("out.jsonl"), Trajectory)
        assert 3 <= len(kept) <= 4
        assert all(len(one.transitions) == STEPS and one.error is None for one in kept)
        code, _, err = await dreamgym(*command, "--model", f"{url}#m", "--budget", "300 calls")
        assert code == 0, err
    assert len(read_jsonl(Path("out.jsonl"), Trajectory)) == 10
    assert len(account.bills) == 10 * STEPS + 2, "no step was asked twice; each command asked what the endpoint can do"


async def test_the_tokens_of_a_step_are_in_its_provenance(dreamgym: Command, dsn: str) -> None:
    command = ["collect", f"{Path('lamps.py').resolve()}:lamps", "--agent", "press", "--episodes", "1"]
    async with billing(simulator) as (url, account):
        code, _, err = await dreamgym(*command, "--against", "dream", "--out", "out.jsonl", "--model", f"{url}#m")
    assert code == 0, err
    (played,) = read_jsonl(Path("out.jsonl"), Trajectory)
    told = [step.provenance for step in played.transitions]
    names = ("prompt_tokens", "cached_tokens", "completion_tokens", "thinking_tokens")
    counted = [tuple(getattr(one, name) for name in names) for one in told]
    billed = [tuple(getattr(one, name) for name in names) for one in account.bills[1:]]
    assert counted == billed
    assert all(min(counts) > 0 for counts in counted)


async def test_a_check_that_is_cut_off_prints_what_it_has(dreamgym: Command) -> None:
    async with billing(simulator) as (url, account):
        code, out, err = await dreamgym(
            "check", "desk", "--against", "dream", "--model", f"{url}#m {ASKED}", "--budget", "5 calls", "--json"
        )
    assert code == 3, err
    report = json.loads(out)
    assert not report["complete"]
    assert report["calls"]
    assert not any(call["failure"] for call in report["calls"])
    assert len(account.bills) == 5
    assert "dreamgym: the budget of 5 calls is spent" in err
    assert "a command that keeps nothing begins anew" in err
    assert "results so far are kept" not in err


async def test_fidelity_does_not_ask_again_for_steps_that_an_earlier_budget_paid_for(dreamgym: Command) -> None:
    async with billing(simulator) as (url, account):
        command = ["fidelity", "desk", "--model", f"{url}#m {ASKED}", "--out", "report"]
        code, _, err = await dreamgym(*command, "--budget", "6 calls")
        assert code == 3, err
        assert json.loads(Path("report/report.json").read_text())["measured"][0]["complete"] is False
        code, _, err = await dreamgym(*command, "--budget", "5.00")
        assert code == 0, err
    held_out = len(json.loads(Path("report/report.json").read_text())["held_out"])
    asked_again = len(account.bills) - 2 - held_out * STEPS
    assert asked_again <= 1, "except for one that was answered when the budget ended"
    assert "steps were predicted before" in err


async def test_an_endpoint_that_reports_no_usage_is_refused_once_and_clearly(dreamgym: Command) -> None:
    async with billing(simulator, tells=False) as (url, account):
        code, _, err = await dreamgym("annotate", "desk", "--model", f"{url}#m", "--budget", "5.00")
    assert (code, len(account.bills), traced()) == (3, 1, 0)
    (said,) = [line for line in err.splitlines() if line.startswith("dreamgym: ")]
    assert said == (
        f"dreamgym: {url}#m reports no token usage, so its cost is unknown and the budget of 5.00 dollars cannot "
        "be enforced: give the budget in calls, such as '300 calls'"
    )


async def test_without_a_price_money_cannot_be_limited_and_nothing_is_asked(
    dreamgym: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PRICE_VARIABLE)
    async with billing(simulator) as (url, account):
        code, _, err = await dreamgym("annotate", "desk", "--model", f"{url}#m", "--budget", "5.00")
    assert (code, account.bills) == (2, [])
    assert f"the price of model '{url}#m' is not known: set the environment variable DREAMGYM_PRICE" in err


async def test_a_malformed_budget_is_misuse(dreamgym: Command) -> None:
    code, _, err = await dreamgym("annotate", "desk", "--model", "local", "--budget", "a lot")
    assert code == 2
    assert "budget 'a lot': expected dollars such as 5.00" in err


async def test_a_server_whose_budget_is_spent_is_unavailable_and_goes_on_when_restarted_with_more(dsn: str) -> None:
    async with billing(simulator) as (url, account):

        async def serve(budget: str, do: Callable[[str], Awaitable[str]]) -> tuple[str, str]:
            command = [sys.executable, "-m", "dreamgym.cli.serve", "desk", "--port", "0", "--budget", budget]
            process = await asyncio.create_subprocess_exec(
                *command,
                "--model",
                f"{url}#m {ASKED}",
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(os.environ),
            )
            assert process.stdout is not None
            try:
                base = (await process.stdout.readline()).decode().strip().removesuffix("/envs/desk/mcp")
                done = await do(base)
            finally:
                process.terminate()
                _, err = await process.communicate()
            return done, err.decode()

        async def step(base: str, name: str, number: int) -> tuple[bool, str]:
            async with Client(f"{base}/envs/desk/episodes/{name}/mcp") as agent:
                answer = await agent.call_tool("find", {"name": f"nobody {number}"})
            return bool(answer.is_error), text_of(answer)

        async def first(base: str) -> str:
            async with ControlClient(base) as control:
                started = await control.create("desk", task=None, seed=1)
                answers = [await step(base, started.episode, number) for number in range(6)]
            assert [is_error for is_error, _ in answers] == [False, False, False, True, True, True]
            assert "unavailable" in answers[3][1]
            assert "budget" not in answers[3][1]
            assert "dollars" not in answers[3][1]
            return started.episode

        name, err = await serve("4 calls", first)
        assert "the budget of 4 calls is spent. What was stored" in err
        assert "spent: 4 calls, " in err
        assert KEY not in err
        assert len(account.bills) == 4

        async def again(base: str) -> str:
            assert await step(base, name, 3) == (False, "click")
            async with ControlClient(base) as control:
                state = await control.finish("desk", name, answer="")
            assert state.trajectory is not None
            thought = [one.provenance.thinking_tokens for one in state.trajectory.transitions]
            assert thought == [40] * 4, "the control API returns the tokens of each step"
            return ""

        await serve("300 calls", again)


def estimated(err: str) -> tuple[list[float], list[float]]:
    """Calls and dollars that a command estimates at its start: usual, low, high."""
    found = re.search(
        r"estimate: about ([\d,]+) calls \(([\d,]+) to ([\d,]+)\) with .*: "
        r"about ([\d.e-]+) dollars \(([\d.e-]+) dollars to ([\d.e-]+) dollars\)",
        err,
    )
    assert found is not None, err
    numbers = [float(number.replace(",", "")) for number in found.groups()]
    return numbers[:3], numbers[3:]


async def test_the_bill_of_fidelity_is_within_its_estimate(dreamgym: Command) -> None:
    async with billing(simulator) as (url, account):
        code, _, err = await dreamgym("fidelity", "desk", "--model", f"{url}#m {ASKED}")
    assert code == 0, err
    calls, dollars = estimated(err)
    assert calls[1] <= len(account.bills) - 1 <= calls[2]
    assert dollars[1] <= account.dollars <= dollars[2]
    assert account.dollars == pytest.approx(dollars[0], rel=0.35)
    assert err.index("estimate: ") < err.index("spent: ")


async def test_the_estimate_of_fidelity_knows_all_recordings_that_answer_instead_of_the_model(
    dreamgym: Command,
) -> None:
    Path("desk/env.toml").write_text('name = "desk"\ndeterministic = true\n')
    twice = [episode(number % 120) for number in range(240)]
    lines = [one.model_copy(update={"id": f"{one.id}-{at}"}).model_dump_json() for at, one in enumerate(twice)]
    Path("desk/trajectories.jsonl").write_text("".join(f"{line}\n" for line in lines))
    async with billing(simulator) as (url, account):
        code, _, err = await dreamgym("fidelity", "desk", "--limit", "60", "--model", f"{url}#m without effects,views")
    assert code == 0, err
    calls, _ = estimated(err)
    assert calls[1] <= len(account.bills) - 1 <= calls[2]


async def test_the_estimate_of_fidelity_leaves_out_kept_steps_and_names_what_it_does_not_count(
    dreamgym: Command,
) -> None:
    async with billing(simulator) as (url, _):
        command = ["fidelity", "desk", "--model", f"{url}#m {ASKED}", "--out", "out"]
        code, _, err = await dreamgym(*command)
        assert code == 0, err
        assert "not counted" not in err
        code, _, err = await dreamgym(*command, "--judge", f"{url}#m")
    assert code == 0, err
    assert "estimate" not in err, "every step was predicted before"
    async with billing(simulator) as (url, _):
        command = ["fidelity", "desk", "--model", f"{url}#m {ASKED}", "--judge", f"{url}#m", "--closed-loop", "1"]
        code, _, err = await dreamgym(*command)
    assert "; not counted: the judge, closed loop and attacks: about " in err


async def test_the_bill_of_annotate_is_within_its_estimate(dreamgym: Command) -> None:
    async with billing(simulator) as (url, account):
        code, _, err = await dreamgym("annotate", "desk", "--model", f"{url}#m")
    assert code == 0, err
    calls, dollars = estimated(err)
    assert calls[0] == len(account.bills) - 1
    assert dollars[1] <= account.dollars <= dollars[2]


async def test_the_bill_of_collect_is_within_its_estimate(dreamgym: Command, dsn: str) -> None:
    env = f"{Path('lamps.py').resolve()}:lamps"
    command = ["collect", env, "--agent", "press", "--against", "dream"]
    async with billing(simulator) as (url, account):
        code, _, err = await dreamgym(*command, "--episodes", "3", "--out", "few.jsonl", "--model", f"{url}#m")
        assert code == 0, err
        assert "estimate" not in err, "without recordings there is no estimate"
        recorded = [one.model_copy(update={"source": Source.REAL}) for one in read_jsonl(Path("few.jsonl"), Trajectory)]
        Path("recorded.jsonl").write_text("".join(f"{one.model_dump_json()}\n" for one in recorded))
        code, _, err = await dreamgym("seed", env, "recorded.jsonl")
        assert code == 0, err
        account.bills.clear()
        model = f"{url}#m {ASKED}"
        code, _, err = await dreamgym(*command, "--episodes", "10", "--out", "out.jsonl", "--model", model)
        assert code == 0, err
        calls, dollars = estimated(err)
        assert calls[1] <= len(account.bills) - 1 <= calls[2]
        assert dollars[1] <= account.dollars <= dollars[2]
        code, _, err = await dreamgym(*command, "--episodes", "12", "--out", "out.jsonl", "--model", model)
        assert code == 0, err
        assert estimated(err)[0][0] == 2 * STEPS, "only the two new episodes are estimated"
        code, _, err = await dreamgym(*command, "--episodes", "12", "--out", "out.jsonl", "--model", model)
        assert code == 0, err
        assert "estimate" not in err, "all episodes were played before"


async def test_an_estimate_counts_no_steps_beyond_the_limit_of_an_episode(dreamgym: Command, dsn: str) -> None:
    lamps = Path("lamps.py")
    lamps.write_text(lamps.read_text().replace("max_steps=5", "max_steps=2"))
    env = f"{lamps.resolve()}:lamps"
    Path("recorded.jsonl").write_text("".join(f"{recorded_lamp(n).model_dump_json()}\n" for n in range(10)))
    code, _, err = await dreamgym("seed", env, "recorded.jsonl")
    assert code == 0, err
    async with billing(simulator) as (url, _):
        command = ["collect", env, "--agent", "press", "--against", "dream", "--episodes", "10", "--out", "out.jsonl"]
        code, _, err = await dreamgym(*command, "--model", f"{url}#m {ASKED}")
    assert code == 0, err
    assert estimated(err)[0][0] == 20, "each recorded episode has three steps"


def recorded_lamp(number: int) -> Trajectory:
    """Three presses; the last one lights the lamp if its number is odd."""
    task = Task(
        id=f"lamp-{number}", env="lamps", instruction=f"Light lamp {number}.", initial_state=f"Lamp {number} is off."
    )
    steps = []
    for times in (1, 2, 3):
        result = StepResult(
            observation=f"click {times}", reward=float(times == 3 and number % 2), terminated=times == 3
        )
        steps.append((ToolCall(name="press", arguments={"command": f"press {times}"}), result))
    return Trajectory(
        id=f"lamp-{number}",
        task=task,
        transitions=Transition.chain(f"Lamp {number} is off.", steps),
        source=Source.REAL,
        stop_reason=StopReason.TERMINATED,
    )


@pytest.mark.slow
@pytest.mark.long
async def test_training_ends_before_the_budget_is_exceeded_and_the_resumed_run_plays_that_update_again(
    dsn: str,
) -> None:
    env = f"{Path('lamps.py').resolve()}:lamps"
    Path("recorded.jsonl").write_text("".join(f"{recorded_lamp(n).model_dump_json()}\n" for n in range(10)))

    async def dreamgym(*arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dreamgym", *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        said, _ = await process.communicate()
        return process.returncode or 0, said.decode()

    assert (await dreamgym("seed", env, "recorded.jsonl"))[0] == 0
    command = ["train", env, "--policy", "tiny", "--steps", "3", "--groups", "2", "--group-size", "3", "--probe", "0"]
    async with billing(simulator) as (url, account):
        command += ["--model", f"{url}#m {ASKED}", "--out", "run"]
        code, said = await dreamgym(*command, "--budget", "20 calls")
        assert code == 3, said
        assert "estimate: about " in said
        assert "dreamgym: the budget of 20 calls is spent" in said
        assert "continue with --resume" in said
        assert len(account.bills) == 20
        updates = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
        assert not any(line.get("failed") for line in updates), (
            "the policy did not learn from episodes without an answer"
        )
        code, said = await dreamgym(*command, "--resume", "--budget", "5.00")
        assert code == 0, said
        assert "estimate: about " in said
        code, said = await dreamgym(*command, "--resume")
        assert code == 0, said
        assert "estimate" not in said, "no update is left"
    kept = [json.loads(line) for line in Path("run/spent.jsonl").read_text().splitlines()]
    assert [line["budget"] for line in kept] == ["20 calls", "5.00 dollars"]
    assert sum(line["calls"] for line in kept) == len(account.bills)
    assert Path("run/policy/config.json").is_file()
