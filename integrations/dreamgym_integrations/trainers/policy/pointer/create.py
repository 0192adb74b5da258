"""Makes an untrained pointer policy for an environment: its words and verbs are those of recorded play."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.reading import reader_of, with_readings
from dreamgym.state import parsed
from dreamgym.types import Trajectory
from dreamgym_integrations.trainers.common.checkpoints import save_model
from dreamgym_integrations.trainers.policy.pointer.codec import kind_word, reader_for
from dreamgym_integrations.trainers.policy.pointer.mapped_state import REFUSED, STATE, WORD, StateMap, nothing_of
from dreamgym_integrations.trainers.policy.pointer.model import PointerConfig, PointerForCausalLM
from dreamgym_integrations.trainers.policy.pointer.verbs import learn_verbs
from dreamgym_integrations.trainers.policy.pointer.words_reader import learn_forms

SPECIAL = ["<pad>", "<end>", "<unk>"]
"""The words PAD, END and UNKNOWN."""
MOST_WORDS = 256
"""Most words that a policy knows: the most frequent ones of recorded play."""


def create_pointer_policy(
    spec: EnvironmentSpec, trajectories: Iterable[Trajectory], folder: Path, *, seed: int, marks: bool = True
) -> None:
    """Write an untrained policy that points at the entities of the environment's reader, or at words if it has none.

    Args:
        spec: description of the environment.
        trajectories: recorded play; the policy knows its words and its accepted calls.
        folder: folder to write; replaced if it exists.
        seed: seed of the weights.
        marks: mark the entities that the task mentions.

    Raises:
        InvalidInput: no recorded call has an entity of the reader as an argument.
    """
    recorded = list(trajectories)
    if not any(trajectory.transitions for trajectory in recorded):
        raise InvalidInput(
            f"no recorded step of {spec.name!r} to learn words and verbs from: run `dreamgym collect` or "
            "`dreamgym seed` first"
        )
    forms = [] if reader_of(spec) is not None else learn_forms(spec, recorded)
    reader = reader_for(spec, forms)
    verbs, values = learn_verbs(spec, recorded, reader), [*reader.schema.values]
    if not any(verb.points_at for verb in verbs):
        offered = ", ".join(sorted(str(tool["name"]) for tool in reader.tools)) or "none"
        others = "" if spec.text_argument is None else "--policy tiny or "
        raise InvalidInput(
            f"no recorded call of the reader's tools ({offered}) has an entity that the reader knows as an argument, "
            f"so a policy cannot point at entities: use {others}the folder of a language model"
        )
    known, state_map = Counter[str](), StateMap(reader.schema, marks=marks)
    for trajectory in recorded:
        episode = state_map.episode(trajectory.task.instruction)
        for step in with_readings(trajectory, reader, spec).transitions:
            entities = episode.entities(parsed(step.state) or {}, refused=False)
            known.update(word for one in entities for word in one.words)
    kinds = [STATE, WORD, *reader.schema.collections]
    config = PointerConfig(
        environment=spec.model_dump(
            mode="json", include={"name", "tools_list", "state", "adapter", "options"}, exclude_defaults=True
        ),
        forms=forms,
        verbs=[verb.model_dump(mode="json") for verb in verbs],
        marks=marks,
        initializer_range=0.02,
    )
    told = [word for word, _ in known.most_common(MOST_WORDS)]
    words = [*SPECIAL, *map(kind_word, kinds), *sorted({*told, REFUSED, *map(nothing_of, values)})]
    choices = [f"<{entity}.{verb}>" for entity in range(config.most_entities) for verb in range(len(verbs))]
    ids = {word: number for number, word in enumerate([*choices, *words])}
    config.words, config.vocab_size = len(words), len(ids)
    config.pad_token_id, config.eos_token_id = ids["<pad>"], ids["<end>"]
    config.kinds = [ids[kind_word(kind)] for kind in kinds]
    config.applies = [[number for number, verb in enumerate(verbs) if kind in verb.kinds] for kind in kinds]
    config.lacks = [
        (ids[nothing_of(value)], [number for number, verb in enumerate(verbs) if value in verb.values.values()])
        for value in values
    ]
    torch.manual_seed(seed)
    model = PointerForCausalLM(config)
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="<end>")
    save_model(model, fast, folder)
