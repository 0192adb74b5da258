"""A policy that a server of the Tinker API samples and trains, on our episodes.

The server has the weights (a LoRA adapter on a base model) and the optimiser, on one machine or on many. This process
keeps the episodes, their advantages, the curriculum and the record. In each update the policy plays at the server, the
episodes become rows with advantages, and the server computes the gradient of importance-weighted GRPO and takes one
step.

A checkpoint, like the final policy, is only a file here: it contains the names of the weights at the server.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from anyio.from_thread import BlockingPortal
from transformers import AutoConfig, AutoTokenizer

from dreamgym.errors import EnvironmentUnavailable, InvalidInput, MissingPackage
from dreamgym.files import write_whole
from dreamgym.training.early_stop import Seen
from dreamgym.training.practice import Practice, Settings
from dreamgym.training.rollout import Generation, Player, Policy, Segment
from dreamgym.types import JsonObject
from dreamgym_integrations.trainers.common.checkpoints import checkpoints, step_of
from dreamgym_integrations.trainers.policy.grpo import check_alive, scored_rows
from dreamgym_integrations.trainers.policy.model import ChatCodec, PolicyCodec, episode_limit, turn_limit
from dreamgym_integrations.trainers.policy.rounds import Round, RoundsOnDemand
from dreamgym_integrations.trainers.policy.run_folder import (
    begin,
    complete,
    first_curriculum,
    identity,
    keep_only,
    newest_checkpoint,
    read_curriculum,
)
from dreamgym_integrations.trainers.policy.vllm import MOST_APART

RANK = 32
"""Rank of the adapter if the settings do not set one."""
WEIGHTS = "tinker.json"
"""File with the names of the weights at the server: `base` (the base model), `state` (to train on) and `sampler`."""
BEST = "best"
SEEDS = 2**31
"""SkyRL accepts only seeds below this."""
CONNECT_S = 5.0
PATIENCE_S = 3600.0
"""Longest wait for an answer; the client itself would try for hours."""


class TinkerPolicy:
    """Samples at the server from the weights of the last update.

    Args:
        tokenizer: has the token that ends an answer.
        max_new_tokens: most tokens of an answer.
        url: address of the server, for error messages.
    """

    sampler: Any
    """The client's sampler for the weights at the time it was made. It is replaced after each update."""

    def __init__(self, tokenizer: Any, max_new_tokens: int, url: str) -> None:
        self._end: int = tokenizer.eos_token_id
        self._max_new_tokens = max_new_tokens
        self._url = url

    def generate(self, prompts_B: Sequence[Sequence[int]], *, seeds_B: Sequence[int]) -> list[Generation]:
        """Sample one answer per prompt.

        Raises:
            EnvironmentUnavailable: the server fails.
            InvalidInput: the server returns no log-probabilities.
        """
        tinker = _client()
        with _failures(self._url):
            asked_B = [
                self.sampler.sample(
                    tinker.ModelInput.from_ints(list(prompt)),
                    num_samples=1,
                    sampling_params=tinker.SamplingParams(
                        max_tokens=self._max_new_tokens, seed=seed % SEEDS, stop=[self._end]
                    ),
                )
                for prompt, seed in zip(prompts_B, seeds_B, strict=True)
            ]
            sampled_B = [asked.result(PATIENCE_S).sequences[0] for asked in asked_B]
        for sampled in sampled_B:
            if not sampled.tokens or sampled.logprobs is None or len(sampled.logprobs) != len(sampled.tokens):
                raise InvalidInput(f"the Tinker server at {self._url} gave an answer without its log-probabilities")
        return [Generation(tuple(one.tokens), tuple(map(float, one.logprobs or ()))) for one in sampled_B]


def train_at_tinker(
    practice: Practice,
    base: Path,
    out: Path,
    settings: Settings,
    *,
    portal: BlockingPortal,
    player: Callable[[Policy, PolicyCodec], Player],
    probe: Callable[[Policy, PolicyCodec, int], Any] | None = None,
    resume: bool = False,
    on_learned: Callable[[JsonObject], None] = lambda line: None,
) -> None:
    """Train at the server `settings.tinker`, and write the names of the weights to `out/policy`.

    Args:
        practice: plays the groups.
        base: the server's name for its base model, from which its tokenizer is loaded too; or a folder that an earlier
            run wrote.
        out: run folder.
        settings: see Settings.
        portal: the event loop on which the environments live.
        player: lets the policy play.
        probe: called before the first update, every `probe_every` updates, and after the last.
        resume: continue from the newest checkpoint in `out`, curriculum included.
        on_learned: called after each update with its number and figures.

    Raises:
        InvalidInput: the settings do not suit such a server, `out` contains another run, or sampler and trainer of the
            server differ.
        EnvironmentUnavailable: the server does not answer or fails, or every rollout of an update failed.
        TrainingStopped: there is nothing to learn.
    """
    url = settings.tinker or ""
    check_settings(settings, practice.processes.count)
    _check_answers(url)
    mine = identity(practice.spec, base, settings)
    checkpoint = newest_checkpoint(out, mine) if resume else None
    practice.run = begin(out, mine, resume=resume)
    done = 0 if checkpoint is None else step_of(checkpoint)
    portal.call(practice.rewind, done)
    if checkpoint is None:
        curriculum = first_curriculum(out, practice.curriculum.state(), resume=resume)
    else:
        curriculum = read_curriculum(checkpoint)
    practice.curriculum.restore(curriculum)
    name, state = _start(base if checkpoint is None else checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(name)
    config = AutoConfig.from_pretrained(name)
    codec = ChatCodec(tokenizer, max_tokens=settings.episode_tokens or episode_limit(config))
    policy = TinkerPolicy(tokenizer, settings.turn_tokens or turn_limit(config), url)
    rounds = RoundsOnDemand(practice, player(policy, codec), portal)

    def look(update: int) -> Seen:
        seen: Seen = Seen(best=False, stop=False) if probe is None else portal.call(probe, policy, codec, update)
        if seen.best:
            weights.save(out / BEST / str(update), f"{practice.run}-best-{update}")
        return seen

    weights = ServerWeights(url, name, state, settings)
    policy.sampler = weights.sampler()
    stop = done == 0 and look(0).stop
    for update in range(done, settings.steps):
        if stop or (update and practice.spent):
            break
        began = time.monotonic()
        played = rounds.take(update)
        waited = time.monotonic() - began
        check_alive(played, settings)
        figures = weights.learn(practice, played, settings.learning_rate * (1 - update / settings.steps))
        policy.sampler = weights.sampler()
        took = {"update_s": round(time.monotonic() - began, 3), "waited_s": round(waited, 3)}
        on_learned({"step": update + 1, **took, **figures})
        is_last = update + 1 == settings.steps or played.is_last
        seen = Seen(best=False, stop=False)
        if is_last or (update + 1) % settings.probe_every == 0:
            seen = look(update + 1)
        stop = seen.stop
        # a resumed run does not go back behind the best policy
        if is_last or stop or seen.best or (update + 1) % settings.save_every == 0:
            folder = out / "checkpoints" / f"checkpoint-{update + 1}"
            weights.save(folder, f"{practice.run}-{update + 1}")
            complete(folder, played.curriculum)
            if seen.best:  # no run resumes from an earlier checkpoint now
                keep_only(out / BEST, str(update + 1))
            for old in sorted(checkpoints(out), key=step_of)[:-2]:
                shutil.rmtree(old)
    weights.save(out / "policy", f"{practice.run}-policy")


class ServerWeights:
    """The weights at the server and their optimiser.

    Args:
        url: address of the server.
        base: the server's name for the base model.
        state: name of the weights to continue from; None: a new adapter.
        settings: see Settings.
    """

    def __init__(self, url: str, base: str, state: str | None, settings: Settings) -> None:
        self._url, self._base, self._settings = url, base, settings
        # the client requires a key of this form, even if the server does not
        service = _client().ServiceClient(base_url=url, api_key=os.environ.get("TINKER_API_KEY") or "tml-none")
        with _failures(url):
            if state is None:
                rank = settings.lora or RANK
                self._training = service.create_lora_training_client(base_model=base, rank=rank, seed=settings.seed)
            else:
                self._training = service.create_training_client_from_state_with_optimizer(state)

    def sampler(self) -> Any:
        """A sampler for the current weights."""
        with _failures(self._url):
            return self._training.save_weights_and_get_sampling_client()

    def learn(self, practice: Practice, played: Round, rate: float) -> JsonObject:
        """Take one step of the optimiser on a round of episodes; return its figures.

        Raises:
            InvalidInput: sampler and trainer differ by more than rounding explains.
        """
        scored = scored_rows(played, practice, self._settings)
        rows = [(row, advantage) for row, advantage in scored if advantage]
        if not rows:  # all episodes of each group had the same reward
            return {"learning_rate": rate}
        # the server's loss is a sum over tokens; that of GRPO is a mean over all sampled tokens of the update
        tokens = sum(sum(row.mask) for row, _ in scored)
        data = [datum(row, advantage / tokens) for row, advantage in rows]
        adam = _client().AdamParams(learning_rate=rate, beta2=0.999, eps=1e-8, grad_clip_norm=1.0)
        with _failures(self._url):
            gradient = self._training.forward_backward(data, "importance_sampling")
            step = self._training.optim_step(adam)
            outputs = gradient.result(PATIENCE_S).loss_fn_outputs
            step.result(PATIENCE_S)
        apart = [
            theirs - mine
            for (row, _), output in zip(rows, outputs, strict=True)
            for theirs, mine, own in zip(
                output["logprobs"].tolist()[len(row.prompt_ids) - 1 :], row.logprobs, row.mask, strict=True
            )
            if own
        ]
        mean = sum(map(abs, apart)) / len(apart)
        if not mean <= MOST_APART:  # NaN is refused too
            raise InvalidInput(
                f"sampler and trainer of the Tinker server at {self._url} differ by {mean:.3g} in the log-probability "
                f"of a token, expected at most {MOST_APART}: the sampler does not seem to use the trained weights"
            )
        importance = sum(map(math.exp, apart)) / len(apart)
        return {
            "learning_rate": rate,
            "apart": mean,
            "importance": importance,
            "trained_tokens": sum(sum(row.mask) for row, _ in rows),
        }

    def save(self, folder: Path, name: str) -> None:
        """Save the weights at the server under a name, and write the server's names for them into a folder."""
        with _failures(self._url):
            state = self._training.save_state(name).result(PATIENCE_S).path
            sampler = self._training.save_weights_for_sampler(name).result(PATIENCE_S).path
        folder.mkdir(parents=True, exist_ok=True)
        named = {"server": self._url, "base": self._base, "state": state, "sampler": sampler}
        write_whole(folder / WEIGHTS, json.dumps(named, indent=2))


def datum(row: Segment, advantage: float) -> Any:
    """A row in the server's format: each token predicts the next; only sampled ones have an advantage."""
    tinker = _client()
    before = [0.0] * (len(row.prompt_ids) - 1)
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(row.ids[:-1]),
        loss_fn_inputs={
            "target_tokens": row.ids[1:],
            "logprobs": [*before, *row.logprobs],
            "advantages": [*before, *(advantage * own for own in row.mask)],
        },
    )


def check_settings(settings: Settings, processes: int) -> None:
    """Raise InvalidInput for settings that such a server cannot follow, or would follow in another way."""
    plain = Settings()
    memory = ("accumulate", "bf16", "gradient_checkpointing")
    own = ("algorithm", "staleness", "beta", "vllm", *memory)
    if named := [name for name in own if getattr(settings, name) != getattr(plain, name)]:
        raise InvalidInput(f"a Tinker server samples and trains with its own GRPO: leave out {', '.join(named)}")
    if processes > 1:
        raise InvalidInput("one process trains at a Tinker server, which spreads the work: start it without a launcher")


def _start(folder: Path) -> tuple[str, str | None]:
    """The base model, and the weights to continue from if the folder has their names."""
    if not (folder / WEIGHTS).is_file():
        return str(folder), None
    named = json.loads((folder / WEIGHTS).read_text(encoding="utf-8"))
    return named["base"], named["state"]


def _check_answers(url: str) -> None:
    """Raise EnvironmentUnavailable if no server answers at `url`; the client itself would try for minutes."""
    try:
        httpx.get(f"{url}/api/v1/healthz", timeout=CONNECT_S, trust_env=False)
    except httpx.HTTPError as error:
        raise EnvironmentUnavailable(f"no Tinker server answers at {url}: {type(error).__name__}: {error}") from error


def _client() -> Any:
    """The package of the client, imported with its telemetry turned off. Raises MissingPackage."""
    os.environ.setdefault("TINKER_TELEMETRY", "0")  # before it is imported
    try:
        import tinker
    except ImportError as error:
        raise MissingPackage("training at a Tinker server", "tinker") from error
    return tinker


@contextmanager
def _failures(url: str) -> Iterator[None]:
    """Raise EnvironmentUnavailable for any error of the client in the block."""
    try:
        yield
    except (_client().TinkerError, TimeoutError, ValueError) as error:  # ValueError: a refusal
        raise EnvironmentUnavailable(f"the Tinker server at {url} failed: {type(error).__name__}: {error}") from error
