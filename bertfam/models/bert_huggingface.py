"""BERT in Hugging Face's files: config.json and names of tensors."""

from collections.abc import Collection, Mapping
from typing import Any

import flax.linen as nn

from bertfam.errors import UserError
from bertfam.layers.activations import Activation
from bertfam.models.bert import BertConfig
from bertfam.models.encoder import EncoderConfig, pooler, sentence_head
from bertfam.models.mapping import Entry, Family, Layout

# their name -> ours; the first six have no default that fits every model
_SIZES = {
    "vocab_size": "vocab_size",
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_heads",
    "intermediate_size": "feed_forward_size",
    "max_position_embeddings": "max_length",
}
_OPTIONS = {
    "type_vocab_size": "type_vocab_size",
    "hidden_dropout_prob": "dropout_rate",
    "attention_probs_dropout_prob": "attention_dropout_rate",
    "layer_norm_eps": "layer_norm_epsilon",
    "initializer_range": "initializer_range",
    "tie_word_embeddings": "tie_embeddings",
}
_TYPES: dict[str, tuple[type, ...]] = {"type_vocab_size": (int,), "tie_word_embeddings": (bool,)}
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
WRITTEN_ACTIVATIONS: dict[Activation, str] = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}
# options that change what is computed, and the values that are BERT
_ONLY = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "is_encoder_decoder": (False, None),
    "pruned_heads": ({}, None),
}


def read_values(content: Mapping[str, Any]) -> dict[str, Any]:
    """config.json's content -> the fields of a config like BERT's.

    Raises:
      UserError: for what is not computed here, or a size that is not stated.
    """
    for name, allowed in _ONLY.items():
        if content.get(name) not in allowed:
            raise UserError(f"config.json: {name} = {content[name]!r} is not supported, only {allowed[0]!r}")
    missing = [name for name in _SIZES if type(content.get(name)) is not int]
    if missing:
        raise UserError(f"config.json: {', '.join(missing)} must be stated, as whole numbers")
    for name in _OPTIONS:
        if type(content.get(name)) not in (types := _TYPES.get(name, (float, int))) and content.get(name) is not None:
            raise UserError(f"config.json: {name} = {content[name]!r} must be of type {types[0].__name__}")
    activation = content.get("hidden_act", "gelu")
    if activation not in list(ACTIVATIONS):
        raise UserError(f"config.json: hidden_act = {activation!r} is not supported, only {', '.join(ACTIVATIONS)}")
    values = {ours: content[theirs] for theirs, ours in (_SIZES | _OPTIONS).items() if content.get(theirs) is not None}
    return values | {"activation": ACTIVATIONS[activation]}


def written_values(config: BertConfig, *, head: Activation | None = None, has: Collection[str] = ()) -> dict[str, Any]:
    """A config like BERT's -> config.json's content, without the model's type and "architectures".

    Args:
      config: a family's.
      head: the activation that its class has in the masked-token head; None: that of the layers.
      has: our fields, of those that BERT's class has no place for, that its own has: "position_offset", "embedding_size",
        "type_vocab_size" (of 0).

    Raises:
      UserError: for what the class cannot be.
    """
    known = {
        "head_activation": (config.head_activation or config.activation, head or config.activation),
        "position_offset": (config.position_offset, 0),
        "embedding_size": (config.table_width, config.hidden_size),
        "type_vocab_size": (config.type_vocab_size, config.type_vocab_size or 1),
    }
    for name, (value, theirs) in known.items():
        if name not in has and value != theirs:
            raise UserError(
                f"{type(config).__name__}.{name} = {value!r} has no place in transformers' class, which has {theirs!r}: a model "
                "like it cannot be written"
            )
    values = {theirs: getattr(config, ours) for theirs, ours in (_SIZES | _OPTIONS).items()}
    values["vocab_size"] = config.known_table_rows
    return {"hidden_act": WRITTEN_ACTIVATIONS[config.activation], "position_embedding_type": "absolute", **values}


def config_from_huggingface(content: Mapping[str, Any]) -> BertConfig:
    """config.json's content -> BertConfig; raises UserError for a model that is not this BERT."""
    return BertConfig(**read_values(content))


def config_to_huggingface(config: BertConfig) -> dict[str, Any]:
    """BertConfig -> config.json's content, without "architectures"; raises UserError for what no BERT can be."""
    return {"model_type": "bert", **written_values(config)}


def encoder_entries(prefix: str, config: BertConfig) -> tuple[Entry, ...]:
    """Every parameter of an encoder like BERT's, and of its pooler."""
    layer, theirs = "encoder/layers/", f"{prefix}encoder.layer.{{layer}}."
    attention = [
        entry
        for name in ("query", "key", "value")
        for entry in dense(f"{layer}attention/{name}", f"{theirs}attention.self.{name}")
    ]
    types = Entry("encoder/embeddings/token_type/table", f"{prefix}embeddings.token_type_embeddings.weight", "matrix")
    return (
        Entry("encoder/embeddings/word/table", f"{prefix}embeddings.word_embeddings.weight", "matrix", vocabulary=True),
        Entry("encoder/embeddings/position/table", f"{prefix}embeddings.position_embeddings.weight", "matrix"),
        *([types] if config.type_vocab_size else []),
        *norm("encoder/embeddings/norm", f"{prefix}embeddings.LayerNorm"),
        *attention,
        *dense(f"{layer}attention/output", f"{theirs}attention.output.dense", "linear_from_heads"),
        *norm(f"{layer}attention_norm", f"{theirs}attention.output.LayerNorm"),
        *dense(f"{layer}feed_forward/intermediate", f"{theirs}intermediate.dense"),
        *dense(f"{layer}feed_forward/output", f"{theirs}output.dense"),
        *norm(f"{layer}feed_forward_norm", f"{theirs}output.LayerNorm"),
        *dense("pooler/dense", f"{prefix}pooler.dense"),
    )


def masked_lm_entries(config: BertConfig, transform: str, layer_norm: str, decoder: str, bias: str) -> tuple[Entry, ...]:
    """Every parameter of the masked-token head, by the names of its four tensors without their endings."""
    # An untied head may have two biases there, of which only the decoder's is used; written twice, read from the last.
    untied = [
        Entry("mlm_head/decoder", f"{decoder}.weight", "matrix", vocabulary=True),
        Entry("mlm_head/bias", f"{decoder}.bias", "vector", vocabulary=True),
    ]
    found = (
        *dense("mlm_head/dense", transform),
        *norm("mlm_head/norm", layer_norm),
        Entry("mlm_head/bias", bias, "vector", vocabulary=True),
        *([] if config.tie_embeddings else untied),
    )
    return tuple(dict.fromkeys(found))


def entries(config: BertConfig, prefix: str = "bert.") -> tuple[Entry, ...]:
    """Every parameter of the encoder and of all heads."""
    head, bias = "cls.predictions.", "cls.predictions.bias"
    return (
        *encoder_entries(prefix, config),
        *masked_lm_entries(config, f"{head}transform.dense", f"{head}transform.LayerNorm", f"{head}decoder", bias),
        *dense("nsp_head/dense", "cls.seq_relationship"),
    )


def dense(ours: str, theirs: str, layout: Layout = "linear") -> tuple[Entry, Entry]:
    """A kernel and a bias."""
    return Entry(f"{ours}/kernel", f"{theirs}.weight", layout), Entry(f"{ours}/bias", f"{theirs}.bias", "vector")


def norm(ours: str, theirs: str) -> tuple[Entry, Entry]:
    """A scale and a bias."""
    return Entry(f"{ours}/scale", f"{theirs}.weight", "vector"), Entry(f"{ours}/bias", f"{theirs}.bias", "vector")


def sentence_heads(config: EncoderConfig) -> dict[str, nn.Module]:
    """The heads of a BERT for pairs of sentences."""
    return {"pooler": pooler(config), "nsp_head": sentence_head(config)}


BERT = Family(
    model_type="bert",
    config=BertConfig,
    objective="objectives/mlm_nsp.gin",
    prefix="bert.",
    architectures={
        frozenset({"encoder"}): "BertModel",
        frozenset({"encoder", "mlm_head"}): "BertForMaskedLM",
        frozenset({"encoder", "pooler"}): "BertModel",
        frozenset({"encoder", "pooler", "nsp_head"}): "BertForNextSentencePrediction",
        frozenset({"encoder", "pooler", "mlm_head", "nsp_head"}): "BertForPreTraining",
    },
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    heads=sentence_heads,
    # One bias of the vocabulary; adding both would count it twice. The decoder's is the one that is used.
    aliases={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    tied=("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    buffers=("position_ids",),
)
