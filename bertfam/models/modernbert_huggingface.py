"""ModernBERT in Hugging Face's files: config.json and names of tensors."""

from collections.abc import Mapping
from typing import Any

from bertfam.errors import UserError
from bertfam.models.bert_huggingface import ACTIVATIONS, WRITTEN_ACTIVATIONS
from bertfam.models.mapping import Entry, Family, Layout, check_types
from bertfam.models.modernbert import LayerType, ModernBertConfig

# their name -> ours; these have no default that fits every model
_SIZES = {
    "vocab_size": "vocab_size",
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_heads",
    "intermediate_size": "feed_forward_size",
    "max_position_embeddings": "max_length",
}
_WHOLE = {"local_attention": "window"}
_NUMBERS = {
    "embedding_dropout": "embedding_dropout_rate",
    "attention_dropout": "attention_dropout_rate",
    "mlp_dropout": "feed_forward_dropout_rate",
    "norm_eps": "layer_norm_epsilon",
    "initializer_range": "initializer_range",
}
_FLAGS = {"tie_word_embeddings": "tie_embeddings", "decoder_bias": "decoder_bias"}
_VALUES = _SIZES | _WHOLE | _NUMBERS | _FLAGS
# the masked-token head goes by the classifier's name
_ACTIVATIONS = {"hidden_activation": "activation", "classifier_activation": "head_activation"}
_TOKENS = ("bos_token_id", "cls_token_id", "eos_token_id", "pad_token_id", "sep_token_id")
_NO_BIAS = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
_TYPES: dict[str, LayerType] = {"full_attention": "global", "sliding_attention": "local"}
_THETAS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}


def config_from_huggingface(content: Mapping[str, Any]) -> ModernBertConfig:
    """config.json's content -> ModernBertConfig, of transformers 4.48 and of 5 alike.

    Raises:
      UserError: for what is not computed here, or a size that is not stated.
    """
    for name in _NO_BIAS:
        if content.get(name):
            raise UserError(f"config.json: {name} = {content[name]!r} is not supported, only False")
    check_types(content, _SIZES, (int,), required=True)
    check_types(content, _WHOLE, (int,))
    check_types(content, _NUMBERS, (int, float))
    check_types(content, _FLAGS, (bool,))
    values = {ours: content[theirs] for theirs, ours in _VALUES.items() if content.get(theirs) is not None}
    for theirs, ours in _ACTIVATIONS.items():
        activation = content.get(theirs, "gelu")
        if activation not in list(ACTIVATIONS):
            raise UserError(f"config.json: {theirs} = {activation!r} is not supported, only {', '.join(ACTIVATIONS)}")
        values[ours] = ACTIVATIONS[activation]
    return ModernBertConfig(**values, **_thetas(content), **_pattern(content, values["num_layers"]))


def _thetas(content: Mapping[str, Any]) -> dict[str, Any]:
    """Of `rope_parameters` for each type of layer (transformers 5), or of `global_rope_theta` and `local_rope_theta` (before)."""
    if content.get("rope_scaling"):
        raise UserError(f"config.json: rope_scaling = {content['rope_scaling']!r} is not supported, only None")
    stated = content.get("rope_parameters") or {}
    if not isinstance(stated, dict) or not set(stated) <= set(_THETAS):
        raise UserError(f"config.json: rope_parameters must be stated for {' and '.join(_THETAS)}")
    thetas = {}
    for layer_type, old in _THETAS.items():
        parameters = stated.get(layer_type) or {}
        if parameters.get("rope_type", "default") != "default":
            kind = parameters["rope_type"]
            raise UserError(f"config.json: rope_parameters of {layer_type} have rope_type {kind!r}, only 'default' is supported")
        theta = parameters.get("rope_theta", content.get(old))
        if theta is not None:
            if type(theta) not in (int, float):
                raise UserError(f"config.json: rope_theta of {layer_type} = {theta!r} must be a number")
            thetas[f"{_TYPES[layer_type]}_theta"] = float(theta)
    return thetas


def _pattern(content: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """`layer_types` where they are stated, told by a period where there is one; else `global_attn_every_n_layers`."""
    every, names = content.get("global_attn_every_n_layers", 3), content.get("layer_types")
    if type(every) is not int:
        raise UserError(f"config.json: global_attn_every_n_layers = {every!r} must be a whole number")
    if names is None:
        return {"global_every": every}
    if not isinstance(names, list) or not set(map(str, names)) <= set(_TYPES):
        raise UserError(f"config.json: layer_types = {names!r} must be a list of {' and '.join(_TYPES)}")
    types = tuple(_TYPES[name] for name in names)
    for period in (every, *range(1, layers + 1)):
        if period > 0 and types == tuple("local" if layer % period else "global" for layer in range(layers)):
            return {"global_every": period}
    return {"layer_types": types}


def config_to_huggingface(config: ModernBertConfig) -> dict[str, Any]:
    """ModernBertConfig -> config.json's content for transformers 4.48 and later, without "architectures"."""
    thetas = {"full_attention": config.global_theta, "sliding_attention": config.local_theta}
    written = {ours: theirs for theirs, ours in _TYPES.items()}
    return {
        "model_type": "modernbert",
        # where no vocabulary says them; their class would put its own, of 50,368 pieces
        **dict.fromkeys(_TOKENS),
        **{theirs: getattr(config, ours) for theirs, ours in _VALUES.items()},
        **{name: False for name in _NO_BIAS},
        "vocab_size": config.known_table_rows,
        "hidden_activation": WRITTEN_ACTIVATIONS[config.activation],
        "classifier_activation": WRITTEN_ACTIVATIONS[config.head_activation or config.activation],
        "initializer_cutoff_factor": 2.0,
        "global_attn_every_n_layers": config.global_every,
        "layer_types": [written[name] for name in config.types],
        "rope_parameters": {name: {"rope_type": "default", "rope_theta": theta} for name, theta in thetas.items()},
        **{_THETAS[name]: theta for name, theta in thetas.items()},
    }


def entries(config: ModernBertConfig) -> tuple[Entry, ...]:
    """Every parameter of the encoder and of the masked-token head."""
    others = config.num_layers - 1
    untied = [Entry("mlm_head/decoder", "decoder.weight", "matrix", vocabulary=True)]
    return (
        Entry("encoder/embeddings/word/table", "model.embeddings.tok_embeddings.weight", "matrix", vocabulary=True),
        Entry("encoder/embeddings/norm/scale", "model.embeddings.norm.weight", "vector"),
        *_layer_entries("first_layers", 0, 1),
        *(_layer_entries("layers", 1, others) if others else ()),
        Entry("encoder/norm/scale", "model.final_norm.weight", "vector"),
        Entry("mlm_head/dense/kernel", "head.dense.weight", "linear"),
        Entry("mlm_head/norm/scale", "head.norm.weight", "vector"),
        *([Entry("mlm_head/bias", "decoder.bias", "vector", vocabulary=True)] if config.decoder_bias else []),
        *([] if config.tie_embeddings else untied),
    )


def _layer_entries(stack: str, first: int, count: int) -> tuple[Entry, ...]:
    """Every parameter of `count` layers from their layer `first` on."""

    def entry(ours: str, theirs: str, layout: Layout, part_of: tuple[int, int] = (0, 1)) -> Entry:
        names = (f"encoder/{stack}/{ours}", f"model.layers.{{layer}}.{theirs}.weight")
        return Entry(*names, layout, part_of=part_of, first_layer=first, layers=count)

    return (
        *([entry("attention_norm/scale", "attn_norm", "vector")] if first else []),
        entry("attention/query/kernel", "attn.Wqkv", "linear", (0, 3)),
        entry("attention/key/kernel", "attn.Wqkv", "linear", (1, 3)),
        entry("attention/value/kernel", "attn.Wqkv", "linear", (2, 3)),
        entry("attention/output/kernel", "attn.Wo", "linear_from_heads"),
        entry("feed_forward_norm/scale", "mlp_norm", "vector"),
        entry("feed_forward/intermediate/kernel", "mlp.Wi", "linear", (0, 2)),
        entry("feed_forward/linear/kernel", "mlp.Wi", "linear", (1, 2)),
        entry("feed_forward/output/kernel", "mlp.Wo", "linear"),
    )


MODERNBERT = Family(
    model_type="modernbert",
    config=ModernBertConfig,
    objective="objectives/modernbert.gin",
    prefix="model.",
    architectures={
        frozenset({"encoder"}): "ModernBertModel",
        frozenset({"encoder", "mlm_head"}): "ModernBertForMaskedLM",
    },
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    tied=("decoder.weight", "model.embeddings.tok_embeddings.weight"),
    old_names={},
    buffers=("inv_freq",),
)
