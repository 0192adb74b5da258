"""Measure how often a dream of WebShop on pages answers as the shop does, and which new wishes its recordings give.

    python benchmarks/webshop_pages.py --catalogue FOLDER [--wishes 20]

Episodes are recorded, half by the behaviour `rule_50` and half by `mixed_shopper`. The steps of other episodes, by
`rule`, `mixed_shopper` and `random`, are then asked in a dream of them, each in the state that the shop's own answers
led to. `recorded` are answers from the recorded pages, `guessed` those of the tier `model`. A purchase that cannot be
judged is open; a win is denied if the dream calls it a failure. Then the calls of the same episodes are made in the
dream's own states; an episode breaks off if no recorded page answers. Finally new wishes are made from every recorded
success. The catalogue has some of them as goals of its own: those are tried in the real shop, with the calls that
fulfil them in the dream.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Sequence

from dreamgym_integrations.environments.webshop import WebShop, webshop_products

from dreamgym.curriculum.goal_variation import goal_variation
from dreamgym.dream.pages import PageWorlds
from dreamgym.episode import play
from dreamgym.evaluation.rates import wilson
from dreamgym.state import as_object
from dreamgym.types import JsonObject, Source, StepResult, Task, Tier, ToolCall, Trajectory

TASKS = 300
"""Most wishes of training that are recorded."""
EPISODES = (75, 150, 300)
"""Numbers of recorded episodes, besides all of them."""
PER_PARENT = 20
"""Most wishes that are made from one recorded success."""


async def visits(real: WebShop, behaviour: str, tasks: Sequence[Task], first_seed: int) -> list[Trajectory]:
    """Play one real episode of each task."""
    environment, player = real.create(), real.behaviours[behaviour]
    return [
        await play(environment, task, player, spec=real.spec, seed=first_seed + number, source=Source.REAL)
        for number, task in enumerate(tasks)
    ]


def asked_again(known: PageWorlds, episodes: Sequence[Trajectory]) -> tuple[Counter[str], float]:
    """Ask each step of the episodes; return counts of the outcomes, and the CPU seconds of an answer."""
    found, seconds = Counter[str](), 0.0
    for trajectory in episodes:
        for number, step in enumerate(trajectory.transitions):
            episode = known.episode(trajectory.task)
            episode.resume(trajectory.transitions[:number])
            begun = time.process_time()
            answer = episode.answer(step.action, step.state)
            seconds += time.process_time() - begun
            found["steps"] += 1
            found["accepted"] += not step.result.is_error
            found["unanswered"] += answer is None
            if answer is None:
                continue
            found["wrongly refused"] += answer.is_error and not step.result.is_error
            if step.result.terminated:
                found["purchases"] += 1
                found["open"] += answer.provenance.open_end
                found["false wins"] += answer.success and step.result.reward == 0
                found["real wins"] += step.result.reward > 0
                found["wins"] += answer.success and step.result.reward > 0
                found["denied"] += step.result.reward > 0 and not (answer.success or answer.provenance.open_end)
            else:
                tier = "recorded" if answer.provenance.tier is Tier.EFFECTS else "guessed"
                found[tier] += 1
                found[f"{tier} right"] += answer.observation == step.result.observation
    return found, seconds / found["steps"]


def played_along(known: PageWorlds, episodes: Sequence[Trajectory]) -> Counter[str]:
    """Play whole episodes in the states that the dream's own answers lead to; return counts of the outcomes."""
    found = Counter[str]()
    for trajectory in episodes:
        episode, answer = known.episode(trajectory.task), None
        for step in trajectory.transitions:
            answer = episode.answer(step.action, step.state)
            if answer is None or answer.terminated:
                break
        found["broke off"] += answer is None
        found["won in the shop"] += trajectory.success is True
        if answer is None:
            continue
        is_open = answer.terminated and answer.provenance.open_end
        found["open"] += is_open
        found["false wins"] += answer.success and not trajectory.success
        found["wins"] += answer.success and trajectory.success is True
        found["denied"] += trajectory.success is True and not (answer.success or is_open)
    return found


def share(part: int, whole: int) -> str:
    """A share in percent with its interval and the number of cases."""
    rate = wilson(part, whole)
    return "-" if whole == 0 else f"{100 * rate.mean:.1f} [{100 * rate.low:.1f}, {100 * rate.high:.1f}] ({whole})"


async def fidelity(real: WebShop) -> PageWorlds:
    """Print the table of answers; return the dream of all recordings."""
    tasks = real.tasks("train")[:TASKS]
    pairs = zip(
        await visits(real, "rule_50", tasks, 0), await visits(real, "mixed_shopper", tasks, 10_000), strict=True
    )
    every = [one for pair in pairs for one in pair]
    print(
        f"Of {len(tasks)} wishes of training; other episodes of the same wishes are asked again. Shares in percent (n)."
    )
    print(
        "\n| recorded episodes (steps) | player | recorded pages answer | of these right | guessed | of these right | "
        "wrongly refused | false wins | wins found | wins denied | purchases open | ms | learned in |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    others = {
        name: await visits(real, name, tasks, 1_000_000 + 10_000 * number)
        for number, name in enumerate(("rule", "mixed_shopper", "random"))
    }
    for count in (*(count for count in EPISODES if count < len(every)), len(every)):
        begun = time.process_time()
        known = PageWorlds.of(every[:count], real.reader, real.goals)
        learned = time.process_time() - begun
        recorded_steps = sum(len(one.transitions) for one in every[:count])
        for name, episodes in others.items():
            found, seconds = asked_again(known, episodes[: count // 2])
            pages = found["steps"] - found["purchases"]
            print(
                f"| {count} ({recorded_steps}) | {name} | {share(found['recorded'], pages)} | "
                f"{share(found['recorded right'], found['recorded'])} | {share(found['guessed'], pages)} | "
                f"{share(found['guessed right'], found['guessed'])} | "
                f"{share(found['wrongly refused'], found['accepted'])} | "
                f"{share(found['false wins'], found['purchases'] - found['real wins'])} | "
                f"{share(found['wins'], found['real wins'])} | {share(found['denied'], found['real wins'])} | "
                f"{share(found['open'], found['purchases'])} | "
                f"{1000 * seconds:.2f} | {learned:.1f} s |"
            )
    print(f"\nWhole episodes in the dream's own states, of {len(every)} recorded episodes:\n")
    print("| player | episodes | broke off | false wins | wins found | wins denied | purchases open |")
    print("|---|---|---|---|---|---|---|")
    for name, episodes in others.items():
        found = played_along(known, episodes)
        count, won = len(episodes), found["won in the shop"]
        print(
            f"| {name} | {count} | {share(found['broke off'], count)} | {share(found['false wins'], count - won)} | "
            f"{share(found['wins'], won)} | {share(found['denied'], won)} | {share(found['open'], count)} |"
        )
    return known


async def wishes(real: WebShop, known: PageWorlds, shown: int) -> None:
    """Print new wishes, and how often the shop agrees with those that it has too."""
    variation = goal_variation(real.spec, known)
    assert variation is not None
    parents = [task for task in real.tasks("train")[:TASKS] if variation.is_recorded(task)]
    begun = time.process_time()
    made = [[one async for one in variation.new_goals(parent, seed=0, trials=PER_PARENT)] for parent in parents]
    count = sum(map(len, made))
    cost = 1000 * (time.process_time() - begun) / count
    goals = {goal.instruction.strip(): number for number, goal in enumerate(real.shop.goals)}
    known_too = [task for of_parent in made for task in of_parent if task.instruction in goals]
    agreed = [await is_fulfilled(real, task, goals[task.instruction]) for task in known_too]
    print(
        f"\n{len(parents)} recorded successes give {count} wishes that nobody recorded, of {PER_PARENT} tried of each; "
        f"{cost:.1f} ms each; {sum(not one for one in made)} give none. The catalogue has {len(agreed)} of them as "
        f"goals: the same calls fulfil {share(sum(agreed), len(agreed))} in the shop.\n"
    )
    print(f"{shown} of them, one of a success:\n")
    print("| recorded | new |")
    print("|---|---|")
    for parent, of_parent in [pair for pair in zip(parents, made, strict=True) if pair[1]][:shown]:
        old, new = (one.instruction.strip().replace("|", "\\|") for one in (parent, of_parent[0]))
        print(f"| {old} | {new} |")


async def is_fulfilled(real: WebShop, task: Task, goal: int) -> bool:
    """True if the purchase that the task's check asks for has a score of 1 in the shop."""
    wanted = as_object(as_object(task.metadata["success"])["properties"])
    chosen = as_object(as_object(wanted["chosen"])["properties"]).values()
    elements = [as_object(wanted["bought"])["const"], *(as_object(one)["const"] for one in chosen), "buy now"]
    environment = real.create()
    await environment.reset(task.model_copy(update={"metadata": {"goal": goal}}))
    result: StepResult = await environment.step(ToolCall(name="search", arguments={"query": task.instruction}))
    for element in elements:
        arguments: JsonObject = {"element": element}
        result = await environment.step(ToolCall(name="click", arguments=arguments))
    await environment.close()
    return result.reward > 0


async def printed(catalogue: str | None, shown: int) -> None:
    """Print both tables."""
    real = webshop_products({"catalogue": catalogue} if catalogue else {})
    await wishes(real, await fidelity(real), shown)


def main() -> None:
    """Print the tables."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument(
        "--catalogue", help="Folder with the authors' files. Default: DREAMGYM_WEBSHOP, else a few invented products."
    )
    arguments.add_argument("--wishes", type=int, default=20, help="Number of new wishes to print.")
    options = arguments.parse_args()
    asyncio.run(printed(options.catalogue, options.wishes))


if __name__ == "__main__":
    main()
