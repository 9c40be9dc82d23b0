"""BigBird (Zaheer et al. 2020): BERT with block-sparse attention for long rows, in both constructions (ITC and ETC)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.kernels.attention.patterns import FULL, BlockSparse, ExtraTokens, Pattern
from bertfam.layers.activations import Activation
from bertfam.layers.execution import Execution
from bertfam.layers.heads.classification import Classifier
from bertfam.models import bert
from bertfam.models.bert import BertConfig
from bertfam.models.mapping import CLASSIFIERS, Entry, Family, dense
from bertfam.models.roberta import RobertaConfig

_EXECUTION = Execution()
AttentionKind = Literal["block_sparse", "full"]
RandomLists = Literal["published", "first"]

# Rows of these lengths have random blocks among their first 1,024 tokens, as in the paper; rows of other lengths among as many
# blocks as the shortest sparse row has, less one.
_PUBLISHED_LENGTHS, _PUBLISHED_LAST = (1024, 3072, 4096), 1024


@dataclass(frozen=True)
class BigBirdConfig(BertConfig):
    """Configuration of a BigBird; the defaults are BigBird-base. See `BertConfig`.

    Attributes:
      attention: "block_sparse" (see `bertfam.kernels.attention.patterns.BlockSparse`), or "full". Rows of at most
        (5 + 2 num_random_blocks) block_size tokens have full attention in any case.
      block_size: tokens in a block.
      num_random_blocks: random blocks that a block of queries attends to.
      random_lists: the random blocks: "published", drawn once for each head of each layer as the published code does; or "first",
        the first block every time, as in transformers outside of training. Since every query attends to the first block anyway,
        that block then counts 1 + num_random_blocks times.
      num_global_tokens: extra tokens before each row, with embeddings of their own, that attend to all tokens and that all tokens
        attend to (see `bertfam.kernels.attention.patterns.ExtraTokens`; ETC). They replace the global first and last block and
        the random blocks, and require rows of one document each. 0: none (ITC).
    """

    objective_file: ClassVar[str] = "objectives/bigbird.gin"
    published_vocab_size: ClassVar[int | None] = 50_358
    norm_after_dropout: ClassVar[bool] = True
    adopts: ClassVar[tuple[type, ...]] = (BertConfig, RobertaConfig)

    activation: Activation = "gelu_tanh"
    max_length: int = 4096
    attention: AttentionKind = "block_sparse"
    block_size: int = 64
    num_random_blocks: int = 3
    random_lists: RandomLists = "published"
    num_global_tokens: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.causal:
            raise self._error("causal", "does not go with the attention of this family; leave it out")
        self._check_at_least(block_size=1, num_random_blocks=0, num_global_tokens=0)
        self._check_among(attention=("block_sparse", "full"), random_lists=("published", "first"))
        if self.num_global_tokens and (self.attention, self.num_random_blocks) != ("block_sparse", 0):
            raise self._error("num_global_tokens", "requires attention = 'block_sparse' and num_random_blocks = 0")

    @property
    @override
    def num_extra_tokens(self) -> int:
        return self.num_global_tokens

    @override
    def span_classifier(self, execution: Execution = _EXECUTION) -> Classifier:
        raise UserError(f"{type(self).__name__} has no head for questions here: fine-tune another encoder")

    @override
    def choice_classifier(self, execution: Execution = _EXECUTION) -> Classifier:
        raise UserError(f"{type(self).__name__} has no head for choices here: fine-tune another encoder")

    @override
    def classifier(self, outputs: int, execution: Execution = _EXECUTION) -> Classifier:
        return self.dense_classifier(outputs, execution, self.activation)

    @property
    @override
    def patterns(self) -> tuple[Pattern, ...]:
        if self.num_global_tokens:
            return (ExtraTokens(self.num_global_tokens, self.block_size),)
        return (BlockSparse(self.block_size, self.num_random_blocks) if self.attention == "block_sparse" else FULL,)

    @override
    def layer_arrays(self, length: int) -> Mapping[str, np.ndarray] | None:
        pattern = self.patterns[0].within(length)
        if not isinstance(pattern, BlockSparse) or pattern.blocks is None:
            return None
        shape = (self.num_layers, self.num_heads, pattern.blocks - 2, self.num_random_blocks)
        if self.random_lists == "first":
            return {"random_blocks": np.zeros(shape, np.int32)}
        options = (pattern.blocks, self.block_size, self.num_random_blocks, self.num_heads, self.max_length // self.block_size)
        return {"random_blocks": np.stack([published_lists(layer, *options) for layer in range(self.num_layers)])}


@cache
def published_lists(seed: int, blocks: int, block: int, count: int, heads: int, table_blocks: int) -> np.ndarray:
    """Draw the random blocks of a layer as the published code does, from NumPy's old generator.

    Args:
      seed: number of the layer.
      blocks: blocks of a row.
      block: tokens in a block.
      count: random blocks for each block of queries.
      heads: number of heads.
      table_blocks: blocks of the longest row, for which the lists of `_PUBLISHED_LENGTHS` are drawn.

    Returns:
      int32[heads, blocks - 2, count], for the blocks of queries from 1 to blocks - 2.
    """
    generator = np.random.RandomState(seed)
    if blocks * block in _PUBLISHED_LENGTHS:
        lists = [_drawn_among_the_first(generator, table_blocks, block, count)[: blocks - 2] for _ in range(heads)]
        return np.stack(lists)
    end = 5 + 2 * count  # of the blocks to draw from
    drawn = np.zeros((heads, blocks, count), np.int32)
    for row in range(1, blocks):
        excluded = {0, end - 1, row - 1, row, row + 1}
        excluded |= {end - 2} if row == 1 else {1} if row == end - 2 else set()
        for head in range(heads):
            allowed = [place for place in generator.permutation(np.arange(end, dtype=np.int32)) if place not in excluded]
            drawn[head, row] = allowed[:count]
    return drawn[:, 1:-1]


def _drawn_among_the_first(generator: np.random.RandomState, blocks: int, block: int, count: int) -> np.ndarray:
    """Draw the random blocks of one head, int32[blocks - 2, count], among those of the first 1,024 tokens."""
    middle = np.arange(1, blocks - 1, dtype=np.int32)
    last = _PUBLISHED_LAST // block - 1 if _PUBLISHED_LAST > 2 * block else blocks - 1
    drawn = np.zeros((blocks - 2, count), np.int32)
    for row in range(1, blocks - 1):
        before, after = middle[: min(max(row - 2, 0), last)], middle[row + 1 : last]
        if row >= blocks - 3:
            before, after = middle[:last], middle[:0]
        elif row + 1 == last:
            after = middle[:0]
        drawn[row - 1] = generator.permutation(np.concatenate([before, after]))[:count]
    return drawn


_THEIR_ATTENTION: dict[str, AttentionKind] = {"block_sparse": "block_sparse", "original_full": "full"}


def config_from_huggingface(content: Mapping[str, Any]) -> BigBirdConfig:
    """Read config.json's content into BigBirdConfig; raises UserError for any other variant of BigBird."""
    for name, only in (("use_bias", True), ("rescale_embeddings", False)):
        if content.get(name, only) != only:
            raise UserError(f"config.json: {name} = {content[name]!r} is not supported, only {only}")
    kind = content.get("attention_type", "block_sparse")
    if kind not in list(_THEIR_ATTENTION):
        raise UserError(f"config.json: attention_type = {kind!r} is not supported, only {', '.join(_THEIR_ATTENTION)}")
    sizes = {"block_size": content.get("block_size", 64), "num_random_blocks": content.get("num_random_blocks", 3)}
    for name, value in sizes.items():
        if type(value) is not int:
            raise UserError(f"config.json: {name} = {value!r} must be a whole number")
    values = bert.read_values({"hidden_act": "gelu_new"} | dict(content))
    return BigBirdConfig(attention=_THEIR_ATTENTION[kind], **sizes, **values)


def config_to_huggingface(config: BigBirdConfig) -> dict[str, Any]:
    """Write BigBirdConfig as config.json's content, without "architectures".

    Raises:
      UserError: if there are extra global tokens, which transformers' class has not.
    """
    if config.num_global_tokens:
        raise UserError(
            f"BigBirdConfig.num_global_tokens = {config.num_global_tokens} has no place in transformers' class, which has no "
            "extra global tokens: this model cannot be exported"
        )
    return {
        "model_type": "big_bird",
        **bert.write_values(config),
        "attention_type": next(theirs for theirs, ours in _THEIR_ATTENTION.items() if ours == config.attention),
        "block_size": config.block_size,
        "num_random_blocks": config.num_random_blocks,
        "use_bias": True,
        "rescale_embeddings": False,
    }


def entries(config: BigBirdConfig) -> tuple[Entry, ...]:
    """Return the entries of every parameter of the encoder and of all heads."""
    as_bert = [entry for entry in bert.entries(config) if entry.part not in ("pooler", *CLASSIFIERS)]
    return (*as_bert, *dense("pooler/dense", "bert.pooler"), *bert.dense_classifier_entries())


BIGBIRD = Family(
    model_type="big_bird",
    config=BigBirdConfig,
    objective="objectives/bigbird.gin",
    objectives_by_part={"pooler": "objectives/mlm_nsp.gin"},
    prefix="bert.",
    architectures={
        frozenset({"encoder"}): "BigBirdModel",
        frozenset({"encoder", "mlm_head"}): "BigBirdForMaskedLM",
        frozenset({"encoder", "pooler"}): "BigBirdModel",
        frozenset({"encoder", "pooler", "mlm_head", "nsp_head"}): "BigBirdForPreTraining",
        frozenset({"encoder", "classifier"}): "BigBirdForSequenceClassification",
        frozenset({"encoder", "token_classifier"}): "BigBirdForTokenClassification",
    },
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    heads=bert.sentence_heads,
    aliases={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    tied=("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    buffers=("position_ids", "token_type_ids"),
    unread=dict.fromkeys(CLASSIFIERS, "pooler"),
)
