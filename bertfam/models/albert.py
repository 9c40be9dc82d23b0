"""ALBERT (Lan et al. 2020): a BERT with parameters shared across layers and factorised embeddings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import flax.linen as nn
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.features import SENTENCES
from bertfam.layers.activations import Activation
from bertfam.models.bert import BertConfig, masked_lm_entries, read_values, token_classifier_entries, write_values
from bertfam.models.encoder import pooler, sentence_head
from bertfam.models.mapping import Entry, Family, dense, norm

Sharing = Literal["none", "all", "attention", "feed_forward"]
_ATTENTION, _FEED_FORWARD = ("attention", "attention_norm"), ("feed_forward", "feed_forward_norm")
_SHARED: dict[Sharing, tuple[str, ...]] = {
    "none": (),
    "all": (*_ATTENTION, *_FEED_FORWARD),
    "attention": _ATTENTION,
    "feed_forward": _FEED_FORWARD,
}


@dataclass(frozen=True)
class AlbertConfig(BertConfig):
    """Configuration of an ALBERT; the defaults are ALBERT-base, version 2, which has no dropout. See `BertConfig`.

    The paper's table 3 is `embedding_size`.

    Attributes:
      sharing: parameters that all layers share (table 4): "none", "all", "attention" or "feed_forward".
    """

    published_vocab_size: ClassVar[int | None] = 30_000

    embedding_size: int | None = 128
    sharing: Sharing = "all"
    activation: Activation = "gelu_tanh"
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_among(sharing=_SHARED)

    @property
    @override
    def classifier_dropout_rate(self) -> float:
        return 0.1  # `classifier_dropout_prob`, whatever the rate of the layers is

    @property
    @override
    def shared_modules(self) -> tuple[str, ...]:
        return _SHARED[self.sharing]


# Number of groups of shared layers, and of layers in a group; both are 1 here.
_ONE = ("num_hidden_groups", "inner_group_num")
_SOP = SENTENCES["order"]


def config_from_huggingface(content: Mapping[str, Any]) -> AlbertConfig:
    """Read config.json's content into AlbertConfig; raises UserError for any other variant of ALBERT."""
    for name in _ONE:
        if content.get(name, 1) != 1:
            raise UserError(
                f"config.json: {name} = {content[name]!r} is not supported, only 1: one layer that is applied repeatedly"
            )
    width = content.get("embedding_size", 128)
    if type(width) is not int:
        raise UserError(f"config.json: embedding_size = {width!r} must be a whole number")
    # Its default activation differs from BERT's.
    config = AlbertConfig(embedding_size=width, **read_values({"hidden_act": "gelu_new"} | dict(content)))
    _check_width(config, "config.json: embedding_size")
    return config


def config_to_huggingface(config: AlbertConfig) -> dict[str, Any]:
    """Write AlbertConfig as config.json's content, without "architectures".

    Raises:
      UserError: for what transformers' ALBERT cannot represent.
    """
    _check_width(config, "AlbertConfig.embedding_size")
    if config.sharing != "all":
        raise UserError(f"AlbertConfig.sharing = {config.sharing!r}: transformers' ALBERT shares whole layers only")
    return {
        "model_type": "albert",
        **write_values(config, has=("embedding_size",)),
        "embedding_size": config.embedding_size,
        **dict.fromkeys(_ONE, 1),
    }


def _check_width(config: AlbertConfig, what: str) -> None:
    if config.table_width == config.hidden_size:
        raise UserError(
            f"{what} is hidden_size, {config.hidden_size}: transformers' ALBERT has a projection between the two even then, and "
            "here there is none, as in the original"
        )


def entries(config: AlbertConfig) -> tuple[Entry, ...]:
    """Return the entries of every parameter of the encoder and of all heads."""
    ours, theirs = "encoder/layers/", "albert.encoder.albert_layer_groups.0.albert_layers.0."
    layer = [
        *(entry for name in ("query", "key", "value") for entry in dense(f"attention/{name}", f"attention.{name}")),
        *dense("attention/output", "attention.dense", "linear_from_heads"),
        *norm("attention_norm", "attention.LayerNorm"),
        *dense("feed_forward/intermediate", "ffn"),
        *dense("feed_forward/output", "ffn_output"),
        *norm("feed_forward_norm", "full_layer_layer_norm"),
    ]
    tables = ("word", "position", "token_type")
    return (
        *(
            Entry(
                f"encoder/embeddings/{name}/table",
                f"albert.embeddings.{name}_embeddings.weight",
                "matrix",
                vocabulary=name == "word",
            )
            for name in tables
            if name != "token_type" or config.type_vocab_size
        ),
        *norm("encoder/embeddings/norm", "albert.embeddings.LayerNorm"),
        *dense("encoder/embeddings/projection", "albert.encoder.embedding_hidden_mapping_in"),
        *(Entry(ours + entry.ours, theirs + entry.theirs, entry.layout, shared=True) for entry in layer),
        *dense("pooler/dense", "albert.pooler"),
        *masked_lm_entries(config, *(f"predictions.{name}" for name in ("dense", "LayerNorm", "decoder", "bias"))),
        *dense(f"{_SOP.head}/dense", "sop_classifier.classifier"),
        *dense("classifier/output", "classifier"),
        *dense("choice_classifier/output", "classifier"),
        *token_classifier_entries(),
    )


def heads(config: AlbertConfig) -> dict[str, nn.Module]:
    """Return the heads of an ALBERT for pairs of sentences."""
    return {"pooler": pooler(config), _SOP.head: sentence_head(config, len(_SOP.classes))}


ALBERT = Family(
    model_type="albert",
    config=AlbertConfig,
    objective="objectives/mlm.gin",
    objectives_by_part={"pooler": "objectives/mlm_sop.gin"},
    prefix="albert.",
    architectures={
        frozenset({"encoder"}): "AlbertModel",
        frozenset({"encoder", "mlm_head"}): "AlbertForMaskedLM",
        frozenset({"encoder", "pooler"}): "AlbertModel",
        frozenset({"encoder", "pooler", "mlm_head", _SOP.head}): "AlbertForPreTraining",
        frozenset({"encoder", "pooler", "classifier"}): "AlbertForSequenceClassification",
        frozenset({"encoder", "token_classifier"}): "AlbertForTokenClassification",
        frozenset({"encoder", "span_classifier"}): "AlbertForQuestionAnswering",
        frozenset({"encoder", "pooler", "choice_classifier"}): "AlbertForMultipleChoice",
    },
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    heads=heads,
    aliases={"predictions.decoder.bias": "predictions.bias"},
    tied=("predictions.decoder.weight", "albert.embeddings.word_embeddings.weight"),
    buffers=("position_ids", "token_type_ids"),
)
