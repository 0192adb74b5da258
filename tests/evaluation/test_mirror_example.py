"""The demonstration on three public servers: its plans fit the servers, and its tables show the comparisons."""

import sys
import tempfile
from pathlib import Path

import pytest
from ledger import NOT_SET, SECRET, SPEC, add, counted, played
from pydantic import JsonValue

from dreamgym.environment import load_real
from dreamgym.evaluation.calls import Compared, agreement, by_tool
from dreamgym.evaluation.report import CheckReport
from dreamgym.types import Task

pytestmark = pytest.mark.anyio

EXAMPLE = Path(__file__).parents[2] / "benchmarks" / "studies" / "mirror"
NODE_MODULES = Path(__file__).parents[1] / "node" / "node_modules"


@pytest.fixture(autouse=True)
def _an_example_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give the example its own folder for temporary files: a demonstration that is running works in the usual one."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for module in ("fresh", "plans", "run"):
        monkeypatch.delitem(sys.modules, module, raising=False)


@pytest.mark.skipif(not NODE_MODULES.is_dir(), reason="the public MCP servers are installed by `make test`")
@pytest.mark.parametrize(
    ("server", "slips"),
    [("filesystem", ["last-error"]), ("memory", []), pytest.param("everything", [], marks=pytest.mark.long)],
)
async def test_each_plan_comes_to_its_answer_on_the_real_server(server: str, slips: list[str]) -> None:
    from plans import PLANS

    command: list[JsonValue] = [sys.executable, str(EXAMPLE / "fresh.py"), server]
    environment = load_real("mcp", {"command": command, "env": ["TMPDIR"]}).create()
    wrong, refused = [], 0
    try:
        for plan in PLANS[server]:
            await environment.reset(Task(id=plan.id, env=server, instruction=plan.instruction))
            said: list[str] = []
            while calls := plan.reply(said).tool_calls:
                result = await environment.step(calls[0])
                said.append(result.observation)
                refused += result.is_error
            wrong += [plan.id] if plan.reply(said).text != plan.right else []
    finally:
        await environment.close()
    assert wrong == slips
    assert refused >= 2


def test_the_tables_give_totals_with_intervals_and_tools_with_counts(tmp_path: Path) -> None:
    from run import tables

    one = played("one", (add(1), counted(1)), (SECRET, NOT_SET))
    calls = [
        Compared(trajectory="one", step=1, action=add(1), recorded=counted(1), got=counted(1), has_schema=True),
        Compared(trajectory="one", step=2, action=SECRET, recorded=NOT_SET, failure="no answer"),
    ]
    for file, model, k in [("counter-real", None, None), ("counter-nearest", "nearest", 16)]:
        report = CheckReport(
            env=SPEC.name,
            against="real" if model is None else "dream",
            model=model,
            k=k,
            seed=0,
            known=(),
            known_transitions=0,
            held_out=(one.id,),
            complete=True,
            total=agreement(calls),
            tools=by_tool(calls),
            calls=tuple(calls),
        )
        (tmp_path / f"{file}.json").write_text(report.model_dump_json())
    lines = tables(tmp_path).splitlines()
    assert lines[2].startswith("| counter | the real server | 2 | 50 % [5, 95] | 100 % [21, 100] |")
    assert lines[3].startswith("| counter | nearest, k = 16 | 2 | 50 % [5, 95]")
    assert "| add | nearest, k = 16 | 1 | 1 of 1 | 1 of 1 | 1 of 1 | 1 of 1 | 1.00 |" in lines
    assert "| secret | the real server | 1 | 0 of 1 |  | 0 of 1 | 0 of 1 | 0.00 |" in lines


def test_two_episodes_stand_side_by_side_and_the_longer_one_goes_on() -> None:
    from run import COLUMN, beside

    assert list(beside(["DREAM", "> a"], ["REAL"])) == [f"{'DREAM':<{COLUMN}} | REAL", f"{'> a':<{COLUMN}} |"]


def test_a_plan_answers_not_found_if_no_result_contains_its_answer() -> None:
    from plans import NOT_FOUND, PLANS

    for plans in PLANS.values():
        for plan in plans:
            said = ["nothing of use"] * len(plan.calls)
            assert plan.reply(said).text == NOT_FOUND
            assert plan.reply(said[1:]).tool_calls == (plan.calls[-1],)


def test_no_instruction_of_a_recorded_task_contains_another_one() -> None:
    from plans import PLANS

    told = [plan.instruction for plans in PLANS.values() for plan in plans]
    assert not [one for one in told for other in told if one is not other and one in other]
