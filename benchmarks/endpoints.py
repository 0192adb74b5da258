"""Count the steps that a dream answers with language models behind endpoints of every kind.

    python benchmarks/endpoints.py [--episodes 16] [--steps 4] [--seeds 5]

Each endpoint is a real HTTP server in this process. The episodes are played at the same time in a dream whose only tier
is the language model. The clock jumps over every wait, so that minutes of rate limits pass in a moment: `seconds` are
those that a run would take. `calls` are all requests that the endpoint saw, `refused` those that it did not answer.

The second table is about runs of about two hours at limited endpoints, with 16 requests at once and answers of random
length and duration. It shows the error of the predicted remaining time after some minutes, the largest over the seeds.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from uuid import uuid4

TESTS = Path(__file__).parents[1] / "tests"
sys.path += [str(TESTS), str(TESTS / "models")]

from dreamgym_integrations.models.openai import OpenAIModel  # noqa: E402
from fake_endpoints import KINDS, FakeEndpoint, serving  # noqa: E402
from limited_runs import RUNS, outcome  # noqa: E402
from virtual_time import VirtualTimeLoop  # noqa: E402

from dreamgym.dream.environment import DreamEnvironment  # noqa: E402
from dreamgym.dream.language_model import LanguageModel  # noqa: E402
from dreamgym.embedding import TrigramEncoder  # noqa: E402
from dreamgym.environment import EnvironmentSpec  # noqa: E402
from dreamgym.errors import EnvironmentUnavailable  # noqa: E402
from dreamgym.replay.memory import MemoryBuffer  # noqa: E402
from dreamgym.types import JsonObject, Task, ToolCall  # noqa: E402

TOOL: JsonObject = {
    "name": "note",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}
LOOKS = (5, 10, 30, 60)
"""Minutes after the start at which the prediction is compared."""
SPEC = EnvironmentSpec(name="notes", tools_list=({"tools": [TOOL]},), max_steps=1_000)


async def play(endpoint: FakeEndpoint, episodes: int, steps: int) -> tuple[int, float, set[str]]:
    """Play the episodes; return the number of rightly answered steps, the seconds, and why other steps failed."""
    failures: set[str] = set()

    async def episode(number: int) -> int:
        environment = DreamEnvironment(SPEC, model, buffer)
        await environment.reset(Task(id=str(number), env="notes", instruction="Take notes."), seed=number)
        right = 0
        for step in range(steps):
            text = f"{number}-{step}-{uuid4().hex}"
            try:
                result = await environment.step(ToolCall(name="note", arguments={"text": text}))
                right += result.observation == f"noted {text}" and result.reward in {0.0, None}
            except EnvironmentUnavailable as error:
                failures.add(str(error))
        return right

    async with serving(endpoint) as url:
        model = LanguageModel(OpenAIModel(url, "m"))
        buffer = MemoryBuffer(TrigramEncoder())
        began = asyncio.get_running_loop().time()
        answered = sum(await asyncio.gather(*map(episode, range(episodes))))
        took_s = asyncio.get_running_loop().time() - began
        await model.close()
    return answered, took_s, failures


def main() -> None:
    """Play with every kind of endpoint, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    print("| endpoint | steps answered | calls | refused | seconds |\n|---|---|---|---|---|")
    for name, made in KINDS.items():
        endpoint = made()
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            answered, took_s, failures = runner.run(play(endpoint, options.episodes, options.steps))
        calls = len(endpoint.asked)
        all_steps = options.episodes * options.steps
        print(
            f"| {name} | {answered} of {all_steps} | {calls} | {calls - endpoint.answered} | {took_s:,.0f} |",
            flush=True,
        )
        for failure in sorted(failures)[:3]:
            print(f"{name}: {failure}", file=sys.stderr)
    looks = " | ".join(f"error at {minutes} min" for minutes in LOOKS)
    print(f"\n| limit | hours | refused | {looks} |\n|---|---|---|{'---|' * len(LOOKS)}")
    for name, run in RUNS.items():
        outcomes = [outcome(run, seed, LOOKS) for seed in range(options.seeds)]
        mean = [
            sum(values) / len(outcomes) for values in zip(*((one.hours, one.refused) for one in outcomes), strict=True)
        ]
        worst = [max((one.errors[minutes] for one in outcomes), key=abs) for minutes in LOOKS]
        errors = " | ".join(f"{error:+.1%}" for error in worst)
        print(f"| {name} | {mean[0]:.2f} | {mean[1]:.0f} | {errors} |", flush=True)


if __name__ == "__main__":
    main()
