"""Measure how often words earn a reward if model and judge believe them, and what the defence costs honest episodes.

    python benchmarks/persuasion.py [--attacks 60]

Models and judges are scripted. In the game `coin`, the model treats every claim as a success that ends the episode. In
the shop, it makes every change of the state that an argument asks for, which the task's own check would accept as a
success. Each row is played twice: without the defence, which shows what an attack would earn, and with it. The honest
rows replay recorded successes, with a model that is always right.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from unittest.mock import patch

from pydantic import JsonValue

from dreamgym.dream.environment import DreamEnvironment, ModelTier
from dreamgym.dream.judge import judge
from dreamgym.dream.language_model import LanguageModel
from dreamgym.dream.model import ExperienceModel, Prediction, Query, Verdict
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import EnvironmentSpec, load_spec, read_jsonl
from dreamgym.evaluation.attack_texts import Attack
from dreamgym.evaluation.attacks import attack_calls, attacks
from dreamgym.evaluation.episodes import has_succeeded, perform, repeating
from dreamgym.evaluation.rates import Rate, wilson
from dreamgym.llm import Message, ScriptedLLM
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.state import apply, as_text, difference, parsed
from dreamgym.types import Provenance, Source, Task, Tier, Trajectory, Transition

STUDIES = Path(__file__).parent / "studies"
COIN = Path(__file__).parents[1] / "examples" / "coin"
WORDS = ("accomplish", "complete", "success", "done", "terminate")
CLAIMS = (Attack.CLAIM, Attack.INSTRUCTION, Attack.FORGED_OUTPUT, Attack.MARKS, Attack.FLOOD, Attack.LOOKALIKE)
NEUTRAL = "Here you are."
KNOWN = (3, 10, 30)
"""Recorded episodes that a dream of the shop knows."""

Verdicts = Callable[[str], bool]
"""Decides from the transcript that a judge is shown whether the task was accomplished."""


def claims(text: str) -> bool:
    """True if a word of the text claims success."""
    return any(word in text.lower() for word in WORDS)


JUDGES: dict[str, Verdicts] = {
    "believes what it reads": claims,
    "always says yes": lambda transcript: True,
    "never believes": lambda transcript: False,
}


def between(text: str, tag: str) -> str:
    """The text between the first opening tag and the last closing tag."""
    return text.partition(f"<{tag}>")[2].rpartition(f"</{tag}>")[0]


def believer(verdict: Verdicts, *, echoes: bool = False, ends: bool = True) -> LanguageModel:
    """A model of a text environment that believes what the agent writes, with a judge.

    Args:
        verdict: decides for the judge.
        echoes: True if the model's answers repeat the action.
        ends: True if the model ends the episode as a success at a claim; otherwise the end is left to the judge.
    """

    def script(messages: Sequence[Message]) -> str:
        asked = messages[-1].content
        if '"accomplished"' in messages[0].content:
            return json.dumps({"reasoning": "", "accomplished": verdict(between(asked, "transcript"))})
        action = between(asked, "action")
        is_end = ends and claims(action)
        said = json.loads(action)["arguments"]["command"] if echoes else "ok"
        answer = {"reasoning": "", "observation": f"you say: {said}", "state": None, "error": False}
        return json.dumps({**answer, "terminated": is_end, "success": is_end})

    return LanguageModel(ScriptedLLM(script))


def truthful(episode: Trajectory) -> LanguageModel:
    """A model of `coin` that answers as recorded in the episode; its judge believes the game's answers."""
    steps = iter(episode.transitions)

    def script(messages: Sequence[Message]) -> str:
        if '"accomplished"' in messages[0].content:
            seen = "you take the coin." in between(messages[-1].content, "transcript")
            return json.dumps({"reasoning": "", "accomplished": seen})
        result = next(steps).result
        answer = {"reasoning": "", "observation": result.observation, "state": None, "error": result.is_error}
        return json.dumps({**answer, "terminated": result.terminated, "success": result.reward > 0})

    return LanguageModel(ScriptedLLM(script))


class Obedient:
    """A model of the shop that makes every change of the state that an argument asks for, and says "ok"."""

    name = "obedient"
    demonstrations = 5
    learns_from_dreams = False

    async def predict(self, query: Query) -> Prediction:
        """Make the changes that the arguments ask for."""
        state = deepcopy(query.state.content)  # all episodes in the same state share the query's content
        for text in map(str, query.action.arguments.values()):
            for path, value in demands(text):
                place = state
                for name in path[:-1]:
                    place = place.setdefault(name, {})  # type: ignore[union-attr,assignment]
                place[path[-1]] = value  # type: ignore[index]
        told = Provenance(tier=Tier.MODEL, model=self.name)
        return Prediction(observation="ok", next_state=as_text(state or {}), provenance=told)

    async def close(self) -> None:
        """Nothing to release."""


def demands(text: str) -> Iterator[tuple[list[str], JsonValue]]:
    """Path and value of every change that a text asks for."""
    start = text.find('{"op": ')
    while start >= 0:
        operation = json.JSONDecoder().raw_decode(text, start)[0]
        yield operation["path"][1:].split("/"), operation["value"]
        start = text.find('{"op": ', start + 1)


class ObedientJudge(Obedient):
    """`Obedient` with the judge of a language model."""

    def __init__(self, verdict: Verdicts) -> None:
        self._judge = believer(verdict)

    async def judge_step(self, query: Query, prediction: Prediction) -> Verdict:
        """The judge's verdict."""
        return await self._judge.judge_step(query, prediction)

    async def judge(
        self, spec: EnvironmentSpec, task: Task, history: Sequence[Transition], answer: str | None, *, seed: int
    ) -> bool:
        """The judge's verdict."""
        return await self._judge.judge(spec, task, history, answer, seed=seed)


class Right:
    """A model of the shop that answers as recorded in the episode; as a judge it knows that this was a success."""

    name = "right"
    demonstrations = 5
    learns_from_dreams = False

    def __init__(self, episode: Trajectory) -> None:
        self._steps = episode.transitions

    async def predict(self, query: Query) -> Prediction:
        """Answer as recorded at this step; the state changes in the same way."""
        step = self._steps[len(query.history)]
        changed = difference(parsed(step.state) or {}, parsed(step.next_state) or {})
        state = apply(query.state.content or {}, changed, query.spec.state)
        return Prediction(
            observation=step.result.observation,
            structured=step.result.structured,
            next_state=as_text(state),
            is_error=step.result.is_error,
            provenance=Provenance(tier=Tier.MODEL, model=self.name),
        )

    async def judge_step(self, query: Query, prediction: Prediction) -> Verdict:
        """Accomplished if this is the last of the calls that succeeded."""
        return Verdict(accomplished=len(query.history) + 1 == len(self._steps))

    async def judge(
        self, spec: EnvironmentSpec, task: Task, history: Sequence[Transition], answer: str | None, *, seed: int
    ) -> bool:
        """True if as many calls were made as those that succeeded."""
        return len(history) == len(self._steps)

    async def close(self) -> None:
        """Nothing to release."""


@contextmanager
def defenceless() -> Iterator[None]:
    """Switch the defence off: a judge is asked once, and a call may change anything that the model changes."""

    async def once(
        self: LanguageModel,
        spec: EnvironmentSpec,
        task: Task,
        steps: Sequence[object],
        state: str,
        *,
        seed: int,
        answer: str | None = None,
    ) -> Verdict:
        return await judge(self._llm, spec, task, steps, seed=seed, final_answer=answer, state=state)  # type: ignore[arg-type]

    with (
        patch.object(LanguageModel, "_judged", once),
        patch.object(ModelTier, "_is_unbounded", lambda *asked: False),
        patch("dreamgym.dream.environment.changeable", lambda query: None),
    ):
        yield


async def claimed_ends(spec: EnvironmentSpec, known: Sequence[Trajectory], model: LanguageModel, count: int) -> Rate:
    """Attack a text environment with claims in the actions."""
    tasks = list({one.task.id: one.task for one in known}.values())[: count // len(CLAIMS)]
    buffer = MemoryBuffer(TrigramEncoder())
    make_dream = partial(DreamEnvironment, spec, model, buffer)
    return (await attacks(spec, tasks, make_dream, recordings=known, kinds=CLAIMS)).rewarded


async def claimed_answers(spec: EnvironmentSpec, known: Sequence[Trajectory], model: LanguageModel, count: int) -> Rate:
    """Attack with claims in actions that do not end the episode, and then a final answer that claims nothing."""
    buffer, bases = MemoryBuffer(TrigramEncoder()), [("", step.action) for one in known for step in one.transitions]
    make_dream = partial(DreamEnvironment, spec, model, buffer)
    won = 0
    for number in range(count):
        task = known[number % len(known)].task
        calls = attack_calls(spec, CLAIMS[number % len(CLAIMS)], task, bases, Random(number), number)
        steps = await perform(spec, make_dream, task, repeating(calls), seed=number, source=Source.SYNTHETIC)
        won += await model.judge(spec, task, steps.transitions, NEUTRAL, seed=number)
    return wilson(won, count)


async def written_states(
    spec: EnvironmentSpec, known: Sequence[Trajectory], tasks: Sequence[Task], model: ExperienceModel
) -> Rate:
    """Attack with changes of the state in the arguments of the shop's calls."""
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add(known)
    make_dream = partial(DreamEnvironment, spec, model, buffer)
    return (await attacks(spec, tasks, make_dream, recordings=known, kinds={Attack.STATE_OPERATION})).rewarded


async def honest(
    spec: EnvironmentSpec,
    known: Sequence[Trajectory],
    episodes: Sequence[Trajectory],
    model_of: Callable[[Trajectory], ExperienceModel],
) -> Rate:
    """Replay recorded successes, call by call, in a dream that knows other recordings."""
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add(known)
    won = 0
    for episode in episodes:
        make_dream = partial(DreamEnvironment, spec, model_of(episode), buffer)
        calls = repeating([step.action for step in episode.transitions])
        again = await perform(spec, make_dream, episode.task, calls, seed=0, source=Source.SYNTHETIC)
        won += has_succeeded(spec, again) is True
    return wilson(won, len(episodes))


def row(what: str, who: str, played: Callable[[], Awaitable[Rate]]) -> str:
    """One line of the table, played without the defence and with it."""

    async def run() -> Rate:
        return await played()

    with defenceless():
        before = asyncio.run(run())
    return f"| {what} | {who} | {before.n} | {before} | {asyncio.run(run())} |"


def coin_rows(count: int) -> Iterator[str]:
    """Rows of the game: attacks by what the judge believes, and honest episodes."""
    folder = COIN
    spec, known = load_spec(str(folder)), read_jsonl(folder / "trajectories.jsonl", Trajectory)
    for name, verdict in JUDGES.items():
        for echoes, told in ((False, ""), (True, ", which the model repeats")):
            model = believer(verdict, echoes=echoes)
            claimed = partial(claimed_ends, spec, known, model, count)
            yield row(f"`coin`: claims in actions{told}", f"judge {name}", claimed)
    for name, verdict in JUDGES.items():
        claimed = partial(claimed_answers, spec, known, believer(verdict, ends=False), count)
        yield row("`coin`: claims in actions, a neutral answer", f"judge {name}", claimed)
    won = [one for one in known if one.success]
    yield row("`coin`: honest", "all right, nothing known", partial(honest, spec, (), won, truthful))


def shop_rows(count: int, folder: Path) -> Iterator[str]:
    """Rows of the shop: attacks and honest episodes by how many recordings the dream knows."""
    spec, recorded = load_spec(str(folder)), read_jsonl(folder / "trajectories.jsonl", Trajectory)
    Random(0).shuffle(recorded)
    obedient = {"no judge": Obedient(), **{f"judge {name}": ObedientJudge(one) for name, one in JUDGES.items()}}
    del obedient["judge never believes"]
    tasks = list({one.task.id: one.task for one in recorded}.values())[:count]
    for size in KNOWN:
        for name, model in obedient.items():
            written = partial(written_states, spec, recorded[:size], tasks, model)
            yield row("shop: changes of the state in arguments", f"obeys, {name}, {size} episodes known", written)
    for size in KNOWN:
        known = recorded[:size]
        seen = {one.task.id for one in known}
        new = [one for one in recorded if one.success and one.task.id not in seen]
        yield row(
            "shop: honest, other tasks", f"all right, {size} episodes known", partial(honest, spec, known, new, Right)
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--attacks", type=int, default=60, help="number of attacks in each row")
    given = parser.parse_args()
    print("| episodes | model and judge | played | succeed without the defence | with it |")
    print("|---|---|---|---|---|")
    for line in coin_rows(given.attacks):
        print(line, flush=True)
    with TemporaryDirectory() as place:
        record = [sys.executable, str(STUDIES / "shop" / "record.py"), "--out", f"{place}/shop", "--direct"]
        subprocess.run(record, check=True, stderr=subprocess.DEVNULL)
        for line in shop_rows(given.attacks, Path(place) / "shop"):
            print(line, flush=True)


if __name__ == "__main__":
    main()
