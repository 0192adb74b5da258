"""The codec of a pointer policy: observations become a mapped state in ids, and a choice becomes an action.

Every turn is a segment of its own: a mapped state and a choice. The policy sees nothing else of the conversation.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.reading import Reader, reader_of, shown
from dreamgym.training.rollout import Generation, Segment, action_text, parse_action
from dreamgym.types import StepResult, Task, ToolCall
from dreamgym_integrations.trainers.policy.pointer.conversations import PointerConversations
from dreamgym_integrations.trainers.policy.pointer.mapped_state import MappedEntity, StateMap
from dreamgym_integrations.trainers.policy.pointer.model import PointerConfig
from dreamgym_integrations.trainers.policy.pointer.verbs import Verb
from dreamgym_integrations.trainers.policy.pointer.words_reader import WordsReader


class PointerCodec:
    """The codec of a checkpoint.

    Args:
        config: config of the checkpoint.
        tokenizer: its tokenizer, which has the ids of the words.
    """

    def __init__(self, config: PointerConfig, tokenizer: Any) -> None:
        self.spec = EnvironmentSpec.model_validate(config.environment)
        self.reader = reader_for(self.spec, config.forms)
        self.map = StateMap(self.reader.schema, marks=config.marks)
        self.verbs = [Verb.model_validate(verb) for verb in config.verbs]
        self.most_entities: int = config.most_entities
        self.max_tokens = sys.maxsize
        """No limit: the mapped state does not grow with the conversation."""
        self._ids: dict[str, int] = tokenizer.get_vocab()
        self._unknown: int = tokenizer.unk_token_id

    def talk(self, task: Task, first: StepResult) -> PointerTalk:
        """Begin an episode."""
        return PointerTalk(self, task, first)

    def conversations(self) -> PointerConversations:
        """Begin the conversations of an episode with an agent."""
        return PointerConversations(self.spec, self.talk)

    def ended(self, ids: Sequence[int]) -> bool:
        """Always True: a choice is one token, so it is never cut off."""
        return True

    def ids(self, entities: Sequence[MappedEntity]) -> list[int]:
        """The ids of a mapped state."""
        ids, unknown = self._ids, self._unknown
        return [ids.get(word, unknown) for one in entities for word in (kind_word(one.kind), *one.words)]


class PointerTalk:
    """One episode: the state that is known so far, and a segment for each turn."""

    def __init__(self, codec: PointerCodec, task: Task, first: StepResult) -> None:
        self._codec, self._map = codec, codec.map.episode(task.instruction)
        self._state = codec.reader.start(task, shown(first))
        self._refused = False
        self._action: ToolCall | None = None
        """The action that the policy took last."""
        self.segments: list[Segment] = []

    @cached_property
    def entities(self) -> list[MappedEntity]:
        """The mapped state."""
        return self._map.entities(self._state, refused=self._refused)[: self._codec.most_entities]

    @cached_property
    def _prompt(self) -> list[int]:
        return self._codec.ids(self.entities)

    @property
    def prompt(self) -> list[int]:
        return self._prompt

    def ids_of(self, text: str) -> list[int] | None:
        call = self._codec.reader.call(parse_action(self._codec.spec, text))
        for number, verb in enumerate(self._codec.verbs):
            entity = verb.pointed_at(call, self.entities)
            meant = None if entity is None else verb.call(self.entities[entity], self._state)
            if entity is not None and meant is not None and meant.canonical() == call.canonical():
                return [entity * len(self._codec.verbs) + number]
        return None

    def say(self, sampled: Generation) -> str:
        """Append the choice and return its text.

        If the state does not suggest the choice, the text is empty, which no environment understands.
        """
        segment = Segment(self.prompt)
        segment.say(sampled)
        self.segments.append(segment)
        entity, verb = divmod(sampled.ids[0], len(self._codec.verbs))
        call = self._codec.verbs[verb].call(self.entities[entity], self._state) if entity < len(self.entities) else None
        self._action = None if call is None else self._codec.reader.action(call)
        return "" if self._action is None else action_text(self._codec.spec, self._action)

    def skip(self, text: str) -> None:
        try:
            self._action = parse_action(self._codec.spec, text)
        except InvalidInput:  # the text is not an action
            self._action = None

    def hear(self, result: StepResult) -> bool:
        """Read the answer. There is always room, since the mapped state does not grow with the conversation."""
        self._refused = True
        if self._action is not None:
            call = self._codec.reader.call(self._action)
            read = self._codec.reader.result(call, shown(result))
            self._state, self._refused = self._codec.reader.after(self._state, call, read), read.is_error
        for known in ("entities", "_prompt"):
            vars(self).pop(known, None)
        return True


def reader_for(spec: EnvironmentSpec, forms: Sequence[str]) -> Reader:
    """The reader of an environment; if it has none, a `WordsReader` with these forms of commands."""
    return reader_of(spec) or WordsReader(spec, forms)


def kind_word(kind: str) -> str:
    """The word that begins an entity."""
    return f"<{kind}>"
