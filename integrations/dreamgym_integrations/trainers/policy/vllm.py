"""The policy in training, sampled by a vLLM server over HTTP.

The user starts the server, in a virtual environment of its own. Whenever the weights have changed, the next call of
`generate` writes them to a folder that the server can read, makes it load them and drop its prefix cache, and checks on
the first answers that server and trainer agree. The trainer's importance weights correct the remaining difference
(precision, kernels).

vLLM takes one seed per request and uses it for every prompt of the request, so all answers of a group would be the
same. Therefore each prompt is a request of its own; the server makes batches of them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import torch

from dreamgym.errors import EnvironmentUnavailable, InvalidInput
from dreamgym.training.rollout import Generation
from dreamgym.types import JsonObject
from dreamgym_integrations.trainers.policy.model import TransformersPolicy

MOST_APART = 0.15
"""Highest mean difference, in nats a token, between the log-probabilities of the server and of the trainer. Measured:
below 0.00001 in float32; with a server in bfloat16 0.004 for `tiny` and 0.05 for a model of 135 million weights, since
bfloat16 rounds a logit between 16 and 32 to steps of 0.125."""
CHECKED = 8
"""Number of answers on which server and trainer are compared after each change of the weights."""
PATIENCE_S = 600.0
"""Longest wait for an answer or for the weights to load."""
COMMAND = "VLLM_SERVER_DEV_MODE=1 vllm serve FOLDER --logprobs-mode processed_logprobs"


class VllmPolicy:
    """Samples at a vLLM server from the weights of a model in this process.

    Args:
        policy: the policy in this process. Its model has the weights, and may be replaced.
        url: address of the server, such as `http://127.0.0.1:8000`, with or without `/v1`.
        folder: where the weights are written for the server, which reads them under the same path.
        save: writes the weights of a model as an ordinary checkpoint folder.
    """

    def __init__(self, policy: TransformersPolicy, url: str, folder: Path, save: Callable[[Any, Path], None]) -> None:
        self._policy, self._folder, self._save = policy, folder.absolute(), save
        self._url = url.rstrip("/").removesuffix("/v1")
        key = os.environ.get("VLLM_API_KEY")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._name: str | None = None
        """Name of the server's model; None before the first request."""
        self._is_new = True
        """True if the server does not have the current weights yet."""
        self.loads_s: list[float] = []
        """Seconds that each change of the weights took, writing included."""
        self.apart: list[float] = []
        """Mean difference of the log-probabilities after each change."""

    @property
    def model(self) -> Any:
        """The model whose weights the server samples from."""
        return self._policy.model

    @model.setter
    def model(self, model: Any) -> None:
        self._policy.model = model
        self.forget()

    def forget(self) -> None:
        """Give the server the new weights before it samples again, after they have changed."""
        self._is_new = True

    def generate(self, prompts_B: Sequence[Sequence[int]], *, seeds_B: Sequence[int]) -> list[Generation]:
        """Sample one answer per prompt.

        Raises:
            EnvironmentUnavailable: the server does not answer.
            InvalidInput: the server refuses, or samples from another distribution than the trainer's.
        """
        return asyncio.run(self._generate(prompts_B, seeds_B))

    async def _generate(self, prompts_B: Sequence[Sequence[int]], seeds_B: Sequence[int]) -> list[Generation]:
        # no pool limit: the server queues, and a request that waits here for a connection would time out
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=self._url, headers=self._headers, timeout=PATIENCE_S, limits=limits, trust_env=False
        ) as client:
            is_new = self._is_new
            if is_new:
                await self._publish(client)
            sampled_B = await asyncio.gather(
                *(self._answer(client, *asked) for asked in zip(prompts_B, seeds_B, strict=True))
            )
        if is_new:
            self._check(prompts_B[:CHECKED], sampled_B[:CHECKED])
            self._is_new = False
        return sampled_B

    async def _publish(self, client: httpx.AsyncClient) -> None:
        """Write the weights and make the server load them."""
        began = time.monotonic()
        if self._name is None:
            listed = await self._asked(client, "GET", "/v1/models")
            self._name = str(listed["data"][0]["id"])
        await asyncio.to_thread(self._save, self._policy.model, self._folder)
        reload: JsonObject = {"method": "reload_weights", "kwargs": {"weights_path": str(self._folder)}}
        await self._asked(client, "POST", "/collective_rpc", reload)
        dropped = await self._asked(client, "POST", "/reset_prefix_cache")
        if dropped.get("success") is False:
            raise EnvironmentUnavailable(
                f"the vLLM server at {self._url} did not drop its prefix cache, which was computed with the old "
                "weights: another client uses the server; give each training run a server of its own"
            )
        self.loads_s.append(time.monotonic() - began)

    async def _answer(self, client: httpx.AsyncClient, prompt: Sequence[int], seed: int) -> Generation:
        policy = self._policy
        asked: JsonObject = {
            "model": self._name,
            "prompt": [*prompt],
            "seed": seed,
            "max_tokens": policy.max_new_tokens,
            "temperature": policy.temperature,
            # by default the server uses the model's generation_config.json, which cuts and changes probabilities
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            # only the token that ends the trainer's own answers ends these
            "ignore_eos": True,
            "stop_token_ids": [policy.tokenizer.eos_token_id],
            "skip_special_tokens": False,
            "logprobs": 0,
            "return_token_ids": True,
        }
        found = await self._asked(client, "POST", "/v1/completions", asked)
        try:
            (choice,) = found["choices"]
            ids, logprobs = tuple(choice["token_ids"]), tuple(map(float, choice["logprobs"]["token_logprobs"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(
                f"the vLLM server at {self._url} answered without token_ids and log-probabilities: vLLM 0.11 or newer "
                f"returns them; start it with: {COMMAND}"
            ) from error
        if len(ids) != len(logprobs) or not ids:
            raise InvalidInput(
                f"the vLLM server at {self._url} gave {len(ids)} token ids and {len(logprobs)} log-probabilities: "
                "expected the same number of both, at least one"
            )
        return Generation(ids=ids, logprobs=logprobs)

    async def _asked(self, client: httpx.AsyncClient, verb: str, path: str, body: JsonObject | None = None) -> Any:
        """Send a request and return the answer as JSON; an empty answer is an empty object."""
        try:
            response = await client.request(verb, path, json=body)
        except httpx.HTTPError as error:
            raise EnvironmentUnavailable(
                f"the vLLM server at {self._url} does not answer {path}: {type(error).__name__}: {error}; "
                f"start it with: {COMMAND}"
            ) from error
        if response.status_code == httpx.codes.NOT_FOUND and not path.startswith("/v1/"):
            raise InvalidInput(
                f"the vLLM server at {self._url} has no endpoint {path}, which is needed to load the trained weights: "
                f"start it with VLLM_SERVER_DEV_MODE=1, as in: {COMMAND}"
            )
        if response.is_server_error:
            raise EnvironmentUnavailable(f"the vLLM server at {self._url} failed at {path}: {response.text[:500]}")
        if response.is_error:
            raise InvalidInput(f"the vLLM server at {self._url} refused {path}: {response.text[:500]}")
        try:
            return response.json() if response.content else {}
        except ValueError as error:
            raise InvalidInput(f"{self._url}{path} did not answer in JSON: is a vLLM server there?") from error

    def _check(self, prompts_B: Sequence[Sequence[int]], sampled_B: Sequence[Generation]) -> None:
        """Raise InvalidInput if the server samples from another distribution than the trainer's."""
        apart = [
            abs(mine - theirs)
            for prompt, sampled in zip(prompts_B, sampled_B, strict=True)
            for mine, theirs in zip(self._logprobs(prompt, sampled.ids), sampled.logprobs, strict=True)
        ]
        mean = sum(apart) / len(apart)
        self.apart.append(mean)
        if not mean <= MOST_APART:  # NaN is refused too
            raise InvalidInput(
                f"the vLLM server at {self._url} and the trainer differ by {mean:.3g} in the log-probability of a "
                f"token, expected at most {MOST_APART}: the server must run with --logprobs-mode processed_logprobs, "
                f"without quantisation, on the same architecture, and see {self._folder} under this path"
            )

    def _logprobs(self, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
        """The trainer's log-probabilities of an answer."""
        model = self._policy.model
        was_training = model.training
        model.eval()
        with torch.inference_mode():
            row = torch.tensor([[*prompt, *ids]], device=model.device)
            logits_TV = model(input_ids=row).logits[0, len(prompt) - 1 : -1].float() / self._policy.temperature
            found: list[float] = logits_TV.log_softmax(-1).gather(-1, row[0, len(prompt) :, None])[:, 0].tolist()
        model.train(was_training)
        return found


def weights_figures(policy: VllmPolicy) -> JsonObject:
    """Seconds that the last change of the weights took, and how much server and trainer differed after it."""
    if not policy.apart:
        return {}
    return {"weights_s": round(policy.loads_s[-1], 3), "apart": policy.apart[-1]}
