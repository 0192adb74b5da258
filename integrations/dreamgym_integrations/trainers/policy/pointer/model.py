"""The network: one vector for each entity of a mapped state, and a score for each verb on each of them.

A row of ids is one mapped state, followed by the choice that was made in it: `entity * verbs + verb`. Choices have the
ids 0 to C - 1, and the network does not read them. So every position of a row predicts the same thing: a choice in the
row's state. A choice that the state does not suggest has probability 0. TRL computes log-probabilities from a hidden
state and the weights of one linear layer, which this network lacks; `restore_own_head` brings back the model's own way.

Entities that are described by the same words have the same vector, so it is computed once, and the others give it their
weight in attention.

Axes: B rows, T ids of a row, N entities of a row, D distinct ones, V verbs, C choices, F words, H width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import ModelOutput
from trl.trainer.utils import FusedCausalLMOutput

PAD, END, UNKNOWN = 0, 1, 2
"""Numbers of the first words: two that are not read, and one for every word that no recording contains."""
NEVER = -1e4
"""Score of a choice that a state does not suggest: its probability is exactly 0, and no sum is infinite."""
AT_ONCE = 32
"""Number of rows that are encoded at once. Rows of similar length are, so that little of it is padding."""


class PointerConfig(PreTrainedConfig):  # type: ignore[misc]  # transformers is not typed
    """The contents of a checkpoint besides the weights.

    Args:
        environment: the environment's description without its tasks, by which its reader is found.
        forms: forms of commands, for an environment without a reader.
        verbs: `Verb`s as JSON.
        marks: mark the entities that the task mentions.
        most_entities: most entities of a state that can be pointed at.
        words: number of words, whose ids begin at C.
        kinds: ids of the words that begin an entity.
        applies: for each of `kinds`, the numbers of the verbs that fit it.
        lacks: ids of the words for a null value of the state, each with the numbers of the verbs that need this value.
    """

    model_type = "dreamgym_pointer"
    auto_map: ClassVar[dict[str, str]] = {}
    """TRL reads it when it makes the reference policy of a model whose class is not part of transformers."""

    def __init__(
        self,
        environment: dict[str, Any] | None = None,
        forms: list[str] | None = None,
        verbs: list[dict[str, Any]] | None = None,
        marks: bool = True,
        most_entities: int = 128,
        words: int = 1,
        kinds: list[int] | None = None,
        applies: list[list[int]] | None = None,
        lacks: list[tuple[int, list[int]]] | None = None,
        hidden_size: int = 64,
        num_hidden_layers: int = 2,
        num_attention_heads: int = 4,
        **options: Any,
    ) -> None:
        self.environment, self.forms, self.verbs, self.marks = environment or {}, forms or [], verbs or [], marks
        self.most_entities, self.words = most_entities, words
        self.kinds, self.applies, self.lacks = kinds or [], applies or [], lacks or []
        self.hidden_size, self.num_hidden_layers = hidden_size, num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.max_action_tokens = 1
        super().__init__(**options)

    @property
    def choices(self) -> int:
        """C: number of choices, and the id of the first word."""
        return self.most_entities * len(self.verbs)


@dataclass
class PointerEncoderOutput(ModelOutput):  # type: ignore[misc]  # transformers is not typed
    """Output of the encoder."""

    last_hidden_state: torch.Tensor | None = None
    """(B, T, H): at each position, the vector of the state itself. A value head reads it."""
    entities: torch.Tensor | None = None
    """(B, N, H)."""
    suggested: torch.Tensor | None = None
    """(B, N, V): True if the state suggests this verb on this entity."""


class PointerBlock(nn.Module):  # type: ignore[misc]  # torch's modules are not typed
    """Attention among the distinct entities of a row, then a layer of four times the width, each after its own norm."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layer = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.queries_keys_values, self.attended = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.wide, self.narrow = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x_BDH: torch.Tensor, times_BD: torch.Tensor) -> torch.Tensor:
        """The vectors of the entities after attention and layer, shape (B, D, H).

        Args:
            x_BDH: the vectors before.
            times_BD: number of entities that each vector stands for; 0 for padding.
        """
        rows, entities, hidden = x_BDH.shape
        split = self.queries_keys_values(self.before_attention(x_BDH))
        q, k, v = split.view(rows, entities, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        weight_B11D = times_BD.to(q.dtype).log()[:, None, None, :]  # attention to n equal keys is n times that to one
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=weight_B11D)
        x_BDH = x_BDH + self.attended(mixed.transpose(1, 2).reshape(rows, entities, hidden))
        return x_BDH + self.narrow(functional.gelu(self.wide(self.before_layer(x_BDH))))


class PointerPreTrainedModel(PreTrainedModel):  # type: ignore[misc]  # transformers is not typed
    """Loading and saving, shared by encoder and policy."""

    config_class = PointerConfig
    base_model_prefix = "encoder"
    _no_split_modules = ("PointerBlock",)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.5)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


class PointerEncoder(PointerPreTrainedModel):
    """Encodes rows of ids as vectors of entities."""

    def __init__(self, config: PointerConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.words, config.hidden_size)
        self.blocks = nn.ModuleList(
            PointerBlock(config.hidden_size, config.num_attention_heads) for _ in range(config.num_hidden_layers)
        )
        self.norm = nn.LayerNorm(config.hidden_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.words

    def forward(self, input_ids: torch.Tensor, **_: Any) -> PointerEncoderOutput:
        """Encode the first `most_entities` entities of each row."""
        tables = self._tables(input_ids.device)
        words_BT = (input_ids - self.config.choices).clamp(min=PAD)
        by_length_B = (words_BT >= UNKNOWN).sum(1).argsort(stable=True)
        parts = [self._encoded(words_BT[rows], *tables) for rows in by_length_B.split(AT_ONCE)]
        entities = max(x_BNH.shape[1] for x_BNH, _ in parts)
        x_BNH, suggested_BNV = (
            torch.cat([functional.pad(one, (0, 0, 0, entities - one.shape[1])) for one in each])[by_length_B.argsort()]
            for each in zip(*parts, strict=True)
        )
        return PointerEncoderOutput(
            last_hidden_state=x_BNH[:, :1].expand(-1, input_ids.shape[1], -1),
            entities=x_BNH,
            suggested=suggested_BNV,
        )

    def _encoded(
        self,
        words_BT: torch.Tensor,
        is_kind_F: torch.Tensor,
        applies_FV: torch.Tensor,
        lacks_FV: torch.Tensor,
        codes_F: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The vectors of the entities, shape (B, N, H), and if the state suggests each verb on them, (B, N, V)."""
        words_BT = words_BT[:, (words_BT >= UNKNOWN).any(0)]
        is_word_BT = words_BT >= UNKNOWN
        begins_BT = is_word_BT & is_kind_F[words_BT]
        number_BT = begins_BT.cumsum(1) - 1
        entities = min(int(begins_BT.sum(1).max().clamp(min=1)), self.config.most_entities)
        is_word_BT &= (number_BT >= 0) & (number_BT < entities)
        begins_BT &= is_word_BT
        rows_B1 = torch.arange(len(words_BT), device=words_BT.device).unsqueeze(1) * entities
        place, told = (rows_B1 + number_BT)[is_word_BT], words_BT[is_word_BT]
        codes_BN, x_BNH = (
            of_word.new_zeros(len(words_BT) * entities, *of_word.shape[1:])
            .index_add(0, place, of_word)
            .view(len(words_BT), entities, *of_word.shape[1:])
            for of_word in (codes_F[told], self.words(told))
        )
        count_B1 = begins_BT.sum(1, keepdim=True).clamp(min=1)
        is_entity_BN = torch.arange(entities, device=words_BT.device) < count_B1
        distinct_BN, first_BD, times_BD = distinct(codes_BN, is_entity_BN)
        x_BDH = _taken(x_BNH, first_BD)
        for block in self.blocks:
            x_BDH = block(x_BDH, times_BD)
        suggested = applies_FV.new_zeros(len(words_BT) * entities, applies_FV.shape[1])
        suggested[(rows_B1 + number_BT)[begins_BT]] = applies_FV[words_BT[begins_BT]]
        lacking_BV = (lacks_FV[words_BT] & is_word_BT.unsqueeze(-1)).any(1)
        suggested_BNV = suggested.view(len(words_BT), entities, -1) & ~lacking_BV.unsqueeze(1)
        return _taken(self.norm(x_BDH), distinct_BN), suggested_BNV

    def _tables(self, device: torch.device) -> Sequence[torch.Tensor]:
        """For each word, if it begins an entity, which verbs fit it, which verbs it rules out, and a random number.

        Entities whose words have the same sum of these numbers are taken for equal.
        """
        config, verbs = self.config, len(self.config.verbs)
        is_kind_F = torch.zeros(config.words, dtype=torch.bool)
        applies_FV, lacks_FV = (torch.zeros(config.words, verbs, dtype=torch.bool) for _ in range(2))
        for kind, numbers in zip(config.kinds, config.applies, strict=True):
            is_kind_F[kind - config.choices] = True
            applies_FV[kind - config.choices, numbers] = True
        for word, numbers in config.lacks:
            lacks_FV[word - config.choices, numbers] = True
        chance = torch.Generator().manual_seed(0)
        codes_F = torch.randint(-(2**63), 2**63 - 1, (config.words,), generator=chance)
        return [table.to(device) for table in (is_kind_F, applies_FV, lacks_FV, codes_F)]


def distinct(codes_BN: torch.Tensor, is_entity_BN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The distinct entities of each row.

    Args:
        codes_BN: a number for each entity; equal ones belong to equal entities.
        is_entity_BN: False for padding.

    Returns:
        For each entity, the number of its distinct one, shape (B, N); for each distinct one, its first entity and how
        many there are, shape (B, D). There are none of what fills a row up.
    """
    codes_BN = codes_BN.masked_fill(~is_entity_BN, torch.iinfo(codes_BN.dtype).max)
    ordered_BN, order_BN = codes_BN.sort(dim=1, stable=True)
    begins_BN = functional.pad(ordered_BN[:, 1:] != ordered_BN[:, :-1], (1, 0), value=False)
    distinct_BN = torch.zeros_like(order_BN).scatter(1, order_BN, begins_BN.cumsum(1))
    rows, most = len(codes_BN), int(distinct_BN.max()) + 1
    times_BD = torch.zeros(rows, most, device=codes_BN.device).scatter_add(1, distinct_BN, is_entity_BN.float())
    place_BN = torch.arange(codes_BN.shape[1], device=codes_BN.device).expand_as(codes_BN)
    first_BD = place_BN.new_full((rows, most), codes_BN.shape[1] - 1)
    return distinct_BN, first_BD.scatter_reduce(1, distinct_BN, place_BN, "amin"), times_BD


def _taken(x_BNH: torch.Tensor, places_BM: torch.Tensor) -> torch.Tensor:
    """The vectors at some places of each row, shape (B, M, H)."""
    return x_BNH.gather(1, places_BM.unsqueeze(-1).expand(-1, -1, x_BNH.shape[-1]))


class PointerForCausalLM(PointerPreTrainedModel, GenerationMixin):  # type: ignore[misc]  # transformers is not typed
    """Scores the choices in each row of ids."""

    def __init__(self, config: PointerConfig) -> None:
        super().__init__(config)
        self.encoder = PointerEncoder(config)
        self.verbs = nn.Linear(config.hidden_size, len(config.verbs))
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.words

    def get_output_embeddings(self) -> nn.Linear:
        return self.verbs

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        logits_to_keep: int = 0,
        fused_lm_head: bool = False,
        num_items_in_batch: Any = None,
        **_: Any,
    ) -> CausalLMOutputWithPast | FusedCausalLMOutput:
        """Logits (B, T, C), or (B, kept, C); with `fused_lm_head`, TRL's per-token figures of the labels.

        The mask is not needed: padding has an id of its own.
        """
        scores_BC = self.scores(input_ids)
        if fused_lm_head:
            assert labels is not None, "TRL scores labels"
            return scored(scores_BC, labels[:, 1:], num_items_in_batch)
        kept = logits_to_keep or input_ids.shape[1]
        loss = None
        if labels is not None:
            loss = scored(scores_BC, labels[:, 1:], num_items_in_batch).loss
        return CausalLMOutputWithPast(loss=loss, logits=scores_BC.unsqueeze(1).expand(-1, kept, -1))

    def scores(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The score of each choice in each row, shape (B, C)."""
        found = self.encoder(input_ids)
        scores_BNV = self.verbs(found.entities).masked_fill(~found.suggested, NEVER)
        missing = self.config.most_entities - scores_BNV.shape[1]
        return functional.pad(scores_BNV, (0, 0, 0, missing), value=NEVER).flatten(1)


def scored(scores_BC: torch.Tensor, labels_BT: torch.Tensor, items: Any) -> FusedCausalLMOutput:
    """The figures of the labels that TRL asks for. A row has at most one label, in any column, and -100 elsewhere."""
    mask_BT = labels_BT != -100
    logprobs_BC = scores_BC.float().log_softmax(-1)
    entropy_B1 = -(logprobs_BC.exp() * logprobs_BC).sum(1, keepdim=True)
    squares_B1 = (2 * logprobs_BC).logsumexp(1, keepdim=True)
    means_B1 = scores_BC.float().mean(1, keepdim=True)

    def at_labels(figure_B1: torch.Tensor) -> torch.Tensor:
        return figure_B1.expand(mask_BT.shape).masked_fill(~mask_BT, 0.0)

    logprobs_BT = at_labels(logprobs_BC.gather(1, labels_BT.clamp(0, scores_BC.shape[1] - 1)))
    return FusedCausalLMOutput(
        loss=-logprobs_BT.sum() / (mask_BT.sum().clamp(min=1) if items is None else items),
        log_probs=logprobs_BT,
        entropy=at_labels(entropy_B1),
        log_sum_sq_probs=at_labels(squares_B1.detach()),
        mean_logits=at_labels(means_B1.detach()),
        is_top1=(scores_BC.argmax(1, keepdim=True) == labels_BT) & mask_BT,
        label_mask=mask_BT,
    )


def restore_own_head(model: Any) -> None:
    """Undo the change that a new TRL trainer makes to a pointer's forward pass; other models are left alone."""
    if isinstance(model, PointerForCausalLM):
        model.__dict__.pop("forward", None)


AutoConfig.register(PointerConfig.model_type, PointerConfig)
AutoModelForCausalLM.register(PointerConfig, PointerForCausalLM)
