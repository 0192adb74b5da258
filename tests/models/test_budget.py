"""A budget stops the questions before it is exceeded; the endpoint is a real server that keeps its own account."""

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from billing import GIVEN, PRICE, THINKING, billing, ok
from dreamgym_integrations.models.endpoint import THINKING_TOKENS
from growth import grows_linearly

from dreamgym import prices
from dreamgym.budget import LEDGER_VARIABLE, Ledger, Limit, Spent, check_budget, open_ledger, read_limit, room_of
from dreamgym.dream.load import load_llm
from dreamgym.dream.questions import MemoryPredictions
from dreamgym.errors import BudgetSpent, EnvironmentUnavailable, InvalidInput
from dreamgym.llm import LLM, Message
from dreamgym.prices import FREE, PRICE_VARIABLE, Price, price_of, read_prices
from dreamgym.types import JsonObject, TokenUsage

pytestmark = pytest.mark.anyio

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
ROOM = 200


@pytest.fixture(autouse=True)
def given_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRICE_VARIABLE, GIVEN)


def question(number: int) -> list[Message]:
    return [Message(role="user", content=f"Is {number} all right? {'Look at it again. ' * 20}")]


@asynccontextmanager
async def loaded(url: str, predictions: MemoryPredictions | None = None) -> AsyncIterator[LLM]:
    llm = load_llm(f"{url}#m", predictions=predictions)
    assert llm is not None
    try:
        yield llm
    finally:
        await llm.close()


def most_of_question() -> TokenUsage:
    """Return the most tokens of a question. The dots are for the form in which the schema is sent, which is longer."""
    return room_of([question(0)[0].content, json.dumps(SCHEMA), 100 * "."], ROOM)


async def asked(llm: LLM, number: int) -> str:
    """Return `yes` or `no`, or the error if the budget is spent."""
    try:
        answer = await llm.complete(question(number), schema=SCHEMA, max_tokens=ROOM)
    except BudgetSpent as error:
        return str(error)
    return "yes" if json.loads(answer.text)["ok"] else "no"


@pytest.mark.parametrize(
    ("text", "amount", "unit", "said"),
    [
        ("5.00", 5, "dollars", "5.00 dollars"),
        ("$0.25", 0.25, "dollars", "0.25 dollars"),
        ("12 dollars", 12, "dollars", "12.00 dollars"),
        ("200k tokens", 200_000, "tokens", "200,000 tokens"),
        ("1.5Mtok", 1_500_000, "tokens", "1,500,000 tokens"),
        ("300 calls", 300, "calls", "300 calls"),
        ("1 call", 1, "calls", "1 call"),
    ],
)
def test_a_budget_is_money_tokens_or_calls(text: str, amount: float, unit: str, said: str) -> None:
    limit = read_limit(text)
    assert (limit.amount, limit.unit, str(limit)) == (amount, unit, said)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "5,00",
        "five",
        "5 euros",
        "$5 calls",
        "1e9",
        "inf",
        "nan",
        "300 cells",
        "5" * 50,
        "5 5",
        "200k",
        "1.5 M",
    ],
)
def test_a_text_that_is_not_a_budget_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"expected dollars such as 5\.00, or '200k tokens', or '300 calls'"):
        read_limit(text)


def test_a_budget_is_read_in_linear_time() -> None:
    assert grows_linearly(read_limit, lambda n: "9" * n)


@pytest.mark.parametrize("text", ["1", "1,2,3,4", "1,-2", "a,b", "1,nan", "m=", "m=1", "1,2 x"])
def test_a_text_that_is_not_a_price_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"DREAMGYM_PRICE: .* is not a price: expected IN,OUT"):
        read_prices(text)


def test_a_price_is_given_for_one_model_or_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRICE_VARIABLE, "http://h:1/v1#m=1,2,0.5 3,4")
    assert price_of("http://h:1/v1#m") == Price(prompt=1, completion=2, cached=0.5)
    assert price_of("openai/x") == Price(prompt=3, completion=4, cached=3)


@pytest.mark.parametrize("model", ["local", "local:1.5b", "nearest", ""])
def test_a_model_in_this_process_costs_nothing_whatever_the_price_for_all_is(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PRICE_VARIABLE, "2,8")
    assert price_of(model) == FREE


def test_a_server_of_ones_own_costs_nothing_and_a_url_has_no_known_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PRICE_VARIABLE)
    assert price_of("hosted_vllm/Qwen/Qwen3-8B") == FREE
    assert price_of("http://localhost:8000/v1") is None


@pytest.mark.parametrize("model", ["openai/gpt-x", "openrouter/gpt-x", "gpt-x", "http://h:1/v1"])
def test_a_file_with_the_name_of_a_paid_model_does_not_make_it_free(
    model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://proxy/v1")
    monkeypatch.delenv(PRICE_VARIABLE)
    monkeypatch.chdir(tmp_path)
    Path(model).parent.mkdir(parents=True, exist_ok=True)
    Path(model).touch()
    assert price_of(model) != FREE


@pytest.mark.parametrize("model", ["openai/gpt-x", "openrouter/gpt-x"])
def test_a_folder_with_the_name_of_a_paid_model_does_not_make_it_free(
    model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://proxy/v1")
    monkeypatch.delenv(PRICE_VARIABLE)
    monkeypatch.chdir(tmp_path)
    Path(model).mkdir(parents=True)
    assert price_of(model) != FREE


def test_a_listed_price_counts_only_for_the_provider_of_that_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(PRICE_VARIABLE)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    row = {"input_cost_per_token": 2e-6, "output_cost_per_token": 8e-6, "cache_read_input_token_cost": 5e-7}
    table = {
        "gpt-x": {**row, "litellm_provider": "openai"},
        "claude-x": {**row, "cache_creation_input_token_cost": 3e-6, "litellm_provider": "anthropic"},
        "openai/odd": {"litellm_provider": "openai", "input_cost_per_token": 1e-6},
        "gpt-x-search-preview": {**row, "litellm_provider": "openai"},
        "perplexity/sonar-pro": {**row, "litellm_provider": "perplexity"},
        "perplexity/sized": {**row, "citation_cost_per_token": 1e-6, "litellm_provider": "perplexity"},
    }
    (tmp_path / "litellm").mkdir()
    (tmp_path / "litellm" / "__init__.py").write_text("raise RuntimeError('it is not to be imported')")
    (tmp_path / "litellm" / prices.TABLE).write_text(json.dumps(table))
    script = "from dreamgym.prices import price_of; import sys; print([price_of(m) for m in sys.argv[1:]])"
    names = [
        "gpt-x",
        "openai/gpt-x",
        "openrouter/gpt-x",
        "anthropic/claude-x",
        "litellm:anthropic/claude-x",
        "claude-x",
    ]
    searching = ["gpt-x-search-preview", "perplexity/sonar-pro", "perplexity/sized"]
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-c", script, *names, "odd", "openai/odd", *searching],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    gpt, claude = Price(prompt=2, completion=8, cached=0.5), Price(prompt=3, completion=8, cached=0.5)
    shown = done.stdout.strip()
    assert shown == str([gpt, gpt, None, claude, claude, None, None, None, None, None, None])


def test_a_budget_counts_the_listed_price_of_a_long_prompt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(PRICE_VARIABLE)
    names = ("input_cost_per_token", "output_cost_per_token")
    row = {"litellm_provider": "gemini", **dict(zip(names, (1e-6, 5e-6), strict=True))}
    long = {f"{name}_above_200k_tokens": cost for name, cost in zip(names, (2e-6, 8e-6), strict=True)}
    entry = {**row, **long, f"{names[0]}_above_200k_tokens_priority": 9e-6, f"{names[0]}_above_512k_tokens": 9e-6}
    (tmp_path / "litellm").mkdir()
    (tmp_path / "litellm" / "__init__.py").touch()
    (tmp_path / "litellm" / prices.TABLE).write_text(json.dumps({"gemini/pro": entry}))
    script = (
        "from dreamgym.prices import price_of; from dreamgym.types import TokenUsage as T\n"
        "for n in (200_000, 200_001): print(price_of('gemini/pro').of_call(T(prompt_tokens=n, completion_tokens=1000)))"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", script], env=env, check=True, capture_output=True, text=True).stdout
    assert [float(line) for line in said.split()] == pytest.approx([0.205, 0.408002])


@pytest.mark.parametrize(
    ("model", "variable"),
    [
        ("gpt-4.1", "OPENAI_BASE_URL"),
        ("openrouter/openai/gpt-4.1", "OPENROUTER_API_BASE"),
        ("litellm:openai/gpt-4.1", "OPENAI_API_BASE"),
        ("litellm:openai/gpt-4.1", "OPENAI_BASE_URL"),
        ("litellm:anthropic/claude-sonnet-4-20250514", "ANTHROPIC_API_BASE"),
        ("anthropic/claude-sonnet-4-20250514", "ANTHROPIC_API_BASE"),
        ("anthropic/claude-sonnet-4-20250514", "ANTHROPIC_BASE_URL"),
        ("deepseek/deepseek-chat", "DEEPSEEK_API_BASE"),
        ("fireworks_ai/accounts/fireworks/models/deepseek-v3", "FIREWORKS_API_BASE"),
        ("friendliai/meta-llama-3.1-8b-instruct", "FRIENDLI_API_BASE"),
        ("lambda_ai/deepseek-v3-0324", "LAMBDA_API_BASE"),
        ("vertex_ai/gemini-3-flash-preview", "VERTEXAI_API_BASE"),
    ],
)
def test_a_listed_price_does_not_count_at_another_address(
    model: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PRICE_VARIABLE)
    monkeypatch.delenv(variable, raising=False)
    assert price_of(model) is not None
    monkeypatch.setenv(variable, "http://elsewhere/v1")
    assert price_of(model) is None


@pytest.mark.parametrize("budget", ["0.02", "6k tokens", "7 calls"])
@pytest.mark.parametrize("at_once", [1, 32])
async def test_a_budget_stops_before_the_call_that_would_pass_it(budget: str, at_once: int) -> None:
    limit = read_limit(budget)
    with open_ledger(budget) as ledger:
        async with billing(ok, thinking=0) as (url, account), loaded(url) as llm:
            free, answers = asyncio.Semaphore(at_once), []

            async def one(number: int) -> None:
                async with free:
                    answers.append(await asked(llm, number))

            await asyncio.gather(*(one(number) for number in range(160)))
        spent = {"dollars": account.dollars, "tokens": account.tokens, "calls": len(account.bills)}[limit.unit]
        told = ledger.spent
        with pytest.raises(BudgetSpent):
            check_budget()
    assert spent <= limit.amount
    mean = account.tokens / len(account.bills)
    call = {"dollars": PRICE.of(account.bills[-1]), "tokens": mean, "calls": 1}[limit.unit]
    most = most_of_question()
    room = {"dollars": PRICE.of(most), "tokens": most.prompt_tokens + most.completion_tokens, "calls": 1}[limit.unit]
    assert spent > limit.amount - room - call, "the next call would have been one too many"
    refusals = {answer for answer in answers if answer != "yes"}
    assert answers.count("yes") == len(account.bills) - 1, "and one call found out what the endpoint can do"
    assert all(f"the budget of {limit} is spent" in one for one in refusals)
    assert all(("the next call may cost" in one) == (limit.unit != "calls") for one in refusals)
    assert told.calls == len(account.bills)
    assert told.untold == 0
    assert told.dollars == pytest.approx(account.dollars)


async def test_thoughts_count_and_their_room_is_reserved_before_a_question_is_asked() -> None:
    with open_ledger("20k tokens") as ledger:
        async with billing(ok) as (url, account), loaded(url) as llm:
            answers = [await asked(llm, number) for number in range(160)]
        told = ledger.spent
    assert told.thinking_tokens == THINKING * len(account.bills)
    assert 20_000 - THINKING_TOKENS - 2_000 < account.tokens <= 20_000 - THINKING_TOKENS
    assert "the next call may cost" in answers[-1]


async def test_an_endpoint_that_takes_no_limit_does_not_think_past_the_budget() -> None:
    with open_ledger("200k tokens") as ledger:
        async with billing(ok, thinking=20_000, limited=False) as (url, account), loaded(url) as llm:
            answers = await asyncio.gather(*(asked(llm, number) for number in range(16)))
        told = ledger.spent
    assert answers.count("yes") >= 2
    assert account.tokens == told.prompt_tokens + told.completion_tokens
    assert account.tokens <= 200_000


async def test_calls_run_at_once_if_the_budget_has_room_for_all() -> None:
    gate = asyncio.Event()
    gate.set()
    with open_ledger("5.00"):
        async with billing(ok, waits=gate) as (url, account), loaded(url) as llm:
            await asked(llm, 0)
            gate.clear()
            asking = [asyncio.create_task(asked(llm, number)) for number in range(1, 33)]
            while account.running < 32:
                await asyncio.sleep(0)
            gate.set()
            answers = await asyncio.gather(*asking)
    assert set(answers) == {"yes"}


@pytest.mark.parametrize("budget", ["5.00", "1M tokens"])
async def test_an_endpoint_that_reports_no_usage_is_refused_after_one_call(budget: str) -> None:
    with open_ledger(budget) as ledger:
        async with billing(ok, tells=False) as (url, account), loaded(url) as llm:
            answers = await asyncio.gather(*(asked(llm, number) for number in range(32)))
        held = ledger.spent
    assert len(account.bills) == 1, "the question what the endpoint can do shows it"
    assert all("reports no token usage" in answer or "is spent" in answer for answer in answers)
    assert "give the budget in calls" in answers[0]
    assert held.untold == len(account.bills)


async def test_an_endpoint_that_reports_no_usage_can_be_limited_in_calls() -> None:
    with open_ledger("4 calls"):
        async with billing(ok, tells=False) as (url, account), loaded(url) as llm:
            answers = [await asked(llm, number) for number in range(6)]
    assert answers[:3] == ["yes"] * 3
    assert len(account.bills) == 4


async def test_a_remembered_answer_costs_nothing() -> None:
    predictions = MemoryPredictions()
    with open_ledger("5 calls"):
        async with billing(ok) as (url, account), loaded(url, predictions) as llm:
            for _ in range(20):
                assert await asked(llm, 1) == "yes"
    assert len(account.bills) == 2
    with open_ledger("0 calls"):
        async with loaded(url, predictions) as llm:
            assert await asked(llm, 1) == "yes"
            assert "the budget of 0 calls is spent" in await asked(llm, 2)


async def test_money_is_not_spent_on_a_model_without_a_known_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PRICE_VARIABLE)
    with open_ledger("5.00"), pytest.raises(InvalidInput, match=r"price of model .* is not known: .* DREAMGYM_PRICE"):
        load_llm("http://localhost:1/v1#m")
    with open_ledger("300 calls"):
        assert load_llm("http://localhost:1/v1#m") is not None


async def test_a_call_that_never_reached_the_model_costs_nothing() -> None:
    with open_ledger("1 call") as ledger:
        async with loaded("http://127.0.0.1:9/v1") as llm:
            for failure in await asyncio.gather(
                *(llm.complete(question(number)) for number in range(3)), return_exceptions=True
            ):
                assert isinstance(failure, EnvironmentUnavailable)
                assert "cannot be reached" in str(failure)
        assert ledger.spent.calls == 0


async def test_an_abandoned_call_counts_as_the_most_that_it_can_cost() -> None:
    never = asyncio.Event()
    with open_ledger("5.00") as ledger:
        async with billing(ok, waits=never) as (url, account), loaded(url) as llm:
            leaving = asyncio.create_task(llm.complete(question(1), max_tokens=ROOM))
            while not account.running:
                await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            never.set()
        assert (ledger.spent.calls, ledger.spent.untold) == (1, 1)
        most = PRICE.of(room_of([question(1)[0].content, '""'], ROOM))
        with pytest.raises(BudgetSpent):
            ledger.reserve(5.00 - 0.9 * most)
        assert ledger.reserve(5.00 - most)


async def test_processes_of_one_run_share_its_budget() -> None:
    script = """
import asyncio, sys
from dreamgym.dream.load import load_llm
from dreamgym.errors import BudgetSpent
from dreamgym.llm import Message
async def main():
    llm = load_llm(sys.argv[1])
    answered = 0
    try:
        for n in range(20):
            await llm.complete([Message(role="user", content=f"{sys.argv[2]} {n}")], max_tokens=10)
            answered += 1
    except BudgetSpent:
        pass
    await llm.close()
    print(answered)
asyncio.run(main())
"""
    with open_ledger("15 calls") as ledger:
        async with billing(ok) as (url, account):
            running = [
                await asyncio.create_subprocess_exec(sys.executable, "-c", script, f"{url}#m", str(n), stdout=-1)
                for n in range(3)
            ]
            outs = [int((await one.communicate())[0]) for one in running]
        assert sum(outs) == len(account.bills) == ledger.spent.calls == 15
        with pytest.raises(BudgetSpent):
            ledger.check()
    assert LEDGER_VARIABLE not in os.environ


def test_the_open_reservation_of_an_ended_process_counts_as_spent() -> None:
    with open_ledger("10 tokens") as ledger:
        code = "from dreamgym.budget import current_ledger; assert current_ledger().reserve(8)"
        subprocess.run([sys.executable, "-c", code], check=True)
        with pytest.raises(BudgetSpent, match="the budget of 10 tokens is spent: 8 tokens in 0 calls"):
            ledger.reserve(3)


def test_a_full_disk_loses_nothing_that_was_spent() -> None:
    with open_ledger("5.00") as ledger:
        ledger.settle(0.0, Spent(prompt_tokens=10, completion_tokens=5, calls=1, dollars=0.4))
        before, (soft, hard) = ledger.spent, resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            with pytest.raises(OSError, match="File too large"):
                ledger.reserve(0.5)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert ledger.spent == before
        assert ledger.reserve(0.5)


def test_the_ledger_of_a_killed_run_is_removed_after_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old, new = tmp_path / "dreamgym-ledger-old", tmp_path / "dreamgym-ledger-new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "ledger.json").touch()
    with open_ledger("1 call") as running:
        (own,) = set(tmp_path.iterdir()) - {old, new}
        for folder in (old, own):
            os.utime(folder, (0, 0))
        with open_ledger("2 calls"):
            assert (old.exists(), new.exists()) == (False, True)
            assert running.limit == Limit(amount=1, unit="calls"), "a run that goes on keeps its ledger"


def test_a_process_with_a_budget_of_its_own_spends_that() -> None:
    with open_ledger("1 call") as outer, open_ledger("2 calls") as inner:
        assert (outer.limit, inner.limit) == (Limit(amount=1, unit="calls"), Limit(amount=2, unit="calls"))
        with open_ledger(None) as joined:
            assert joined.limit == inner.limit
            assert not joined.is_own
    assert isinstance(inner, Ledger)
