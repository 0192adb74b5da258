"""The token counts of an answer, read from the usage that an OpenAI-compatible endpoint or litellm reports."""

from __future__ import annotations

from dreamgym.types import TokenUsage

MOST_TOKENS = 10**12


def usage_of(reported: object) -> TokenUsage:
    """The token counts of one answer. A count that is missing, not a number or absurd is 0, which means unknown.

    Args:
        reported: `usage` of a chat completion. An endpoint may leave it out (None) or break its format.
    """

    def count(*path: str) -> int:
        found = reported
        for name in path:
            found = found.get(name) if isinstance(found, dict) else getattr(found, name, None)
        return found if isinstance(found, int) and not isinstance(found, bool) and 0 < found < MOST_TOKENS else 0

    prompt, completion = count("prompt_tokens"), count("completion_tokens")
    if prompt:  # Gemini and Grok count thoughts, which they bill, only in the total
        completion = max(completion, count("total_tokens") - prompt)
    thinking = count("completion_tokens_details", "reasoning_tokens")
    if thinking > completion:  # they were counted beside the answer
        completion += thinking
    return TokenUsage(
        prompt_tokens=prompt,
        cached_tokens=min(prompt, count("prompt_tokens_details", "cached_tokens")),
        completion_tokens=completion,
        thinking_tokens=thinking,
    )
