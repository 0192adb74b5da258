"""Providers without an OpenAI-compatible endpoint, through litellm.

litellm takes seconds and 200 MB to import and fetches a price list over the network when it is; so it is told to use
the list it brings, and never imported for any other model. What cannot work, such as a provider that it does not know
or one without its key, is refused when the model is loaded. Retries are ours: its own need a package that it does not
bring, and hide the error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Literal

from dreamgym.budget import Meter, call_through, room_of
from dreamgym.errors import BudgetSpent, EnvironmentUnavailable, InvalidInput, MissingPackage
from dreamgym.llm import Completion, Message, is_strict
from dreamgym.types import JsonObject
from dreamgym_integrations.models.usage import usage_of

TIMEOUT_S = 120.0
ATTEMPTS = 3


def load(name: str) -> LiteLLMModel:
    """The model that litellm calls `provider/model`.

    Raises:
        InvalidInput: no name, a provider that litellm does not know, or the provider's key is not set.
        MissingPackage: litellm is not installed.
    """
    if not name:
        raise InvalidInput("expected litellm:PROVIDER/MODEL")
    if find_spec("litellm") is None:
        raise MissingPackage(f"model {name!r}", "litellm")
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    litellm.suppress_debug_info = True  # it would print to stdout
    try:
        _, provider, _, _ = litellm.get_llm_provider(model=name)
    except litellm.BadRequestError as error:
        raise InvalidInput(
            f"model {name!r}: litellm knows no provider {name.partition('/')[0]!r}; "
            "docs.litellm.ai/docs/providers lists them"
        ) from error
    missing = litellm.validate_environment(model=name)["missing_keys"]
    # other credentials, such as those of a cloud, may come from files and roles that only the first question finds
    if missing and all(variable.endswith("_API_KEY") for variable in missing):
        raise InvalidInput(f"model {name!r} needs a key of {provider}: set {' or '.join(missing)}")
    return LiteLLMModel(name)


class LiteLLMModel:
    """One model of one provider; keys come from the variables that litellm documents."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.meter: Meter | None = None

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: JsonObject | None = None,
        max_tokens: int = 512,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Completion:
        """Answer the messages. Raises EnvironmentUnavailable."""
        import litellm

        form = {"name": "answer", "schema": schema, "strict": is_strict(schema)}
        asked_form = {"type": "json_schema", "json_schema": form} if schema is not None else None
        # answers of a provider that has not asked its model
        unbilled = (litellm.AuthenticationError, litellm.BadRequestError, litellm.NotFoundError, litellm.RateLimitError)
        room = room_of([*(message.content for message in messages), json.dumps(form)], max_tokens)
        for attempt in range(ATTEMPTS):
            try:
                async with call_through(self.meter, room) as call:
                    try:
                        found = await litellm.acompletion(
                            model=self.name,
                            messages=[message.model_dump() for message in messages],
                            response_format=asked_form,
                            max_tokens=max_tokens,
                            temperature=temperature,
                            seed=seed % 2**31,
                            timeout=TIMEOUT_S,
                            drop_params=True,
                            num_retries=0,
                        )
                    except unbilled:
                        call.is_free = True
                        raise
                    call.answered(usage_of(getattr(found, "usage", None)))
                break
            except BudgetSpent:
                raise
            except (litellm.Timeout, litellm.RateLimitError, litellm.InternalServerError) as error:
                if attempt == ATTEMPTS - 1:
                    raise self._unavailable(error) from None
            except Exception as error:  # noqa: BLE001  its errors share no base but Exception, and carry the request
                raise self._unavailable(error) from None
        choice = found.choices[0]
        if choice.finish_reason == "content_filter":
            raise EnvironmentUnavailable(f"{self.name} refused to answer")
        finish_reason: Literal["stop", "length"] = "length" if choice.finish_reason == "length" else "stop"
        return Completion(
            text=choice.message.content or "",
            finish_reason=finish_reason,
            **usage_of(getattr(found, "usage", None)).model_dump(),
        )

    async def close(self) -> None:
        pass

    def _unavailable(self, error: Exception) -> EnvironmentUnavailable:
        """The kind of error, and its first line without anything that is a key in this environment."""
        line = (str(error).splitlines() or [""])[0][:300]
        for variable, value in os.environ.items():
            if variable.endswith("_API_KEY") and value:
                line = line.replace(value, "***")
        return EnvironmentUnavailable(f"{self.name} failed: {type(error).__name__}: {line}")
