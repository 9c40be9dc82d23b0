"""T5 in Hugging Face's files: config.json and names of tensors."""

from collections.abc import Mapping
from typing import Any

from bertfam.errors import UserError
from bertfam.layers.activations import Activation
from bertfam.models.mapping import Entry, GeneratorFamily, Layout, check_types, generator_architectures, stated
from bertfam.models.t5 import T5Config

# their name -> ours; these have no default that fits every model
_SIZES = {
    "vocab_size": "vocab_size",
    "num_layers": "num_encoder_layers",
    "d_model": "hidden_size",
    "num_heads": "num_heads",
    "d_kv": "head_dim",
    "d_ff": "feed_forward_size",
}
_WHOLE = {
    "num_decoder_layers": "num_layers",
    "relative_attention_num_buckets": "relative_buckets",
    "relative_attention_max_distance": "relative_max_distance",
}
_NUMBERS = {"dropout_rate": "dropout_rate", "layer_norm_epsilon": "layer_norm_epsilon"}
_VALUES = _SIZES | _WHOLE | _NUMBERS
# Gated, their "gelu" is the tanh approximation; without a gate it is erf.
_FEED_FORWARDS: dict[str, tuple[Activation, bool]] = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "gelu_new": ("gelu_tanh", False),
    "gated-relu": ("relu", True),
    "gated-gelu_python": ("gelu", True),
    "gated-gelu": ("gelu_tanh", True),
    "gated-silu": ("silu", True),
    "silu": ("silu", False),
}
# Where no vocabulary says them; their class would put its own.
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def read_values(content: Mapping[str, Any]) -> dict[str, Any]:
    """config.json's content -> the fields of a config like T5's, but for the head.

    Raises:
      UserError: for what is not computed here, or a size that is not stated.
    """
    check_types(content, _SIZES, (int,), required=True)
    check_types(content, _WHOLE, (int,))
    check_types(content, _NUMBERS, (int, float))
    check_types(content, ("tie_word_embeddings", "scale_decoder_outputs"), (bool,))
    if content.get("is_encoder_decoder") is False:
        raise UserError("config.json: is_encoder_decoder = False is not supported, only True")
    name = content.get("feed_forward_proj", "relu")
    if name not in list(_FEED_FORWARDS):
        raise UserError(f"config.json: feed_forward_proj = {name!r} is not supported, only {', '.join(_FEED_FORWARDS)}")
    activation, gated = _FEED_FORWARDS[name]
    values = {ours: content[theirs] for theirs, ours in _VALUES.items() if content.get(theirs) is not None}
    layers = {"num_layers": values["num_encoder_layers"]} | values
    if layers["num_layers"] == layers["num_encoder_layers"]:
        del layers["num_encoder_layers"]
    return layers | {"activation": activation, "gated": gated}


def config_from_huggingface(content: Mapping[str, Any]) -> T5Config:
    """config.json's content -> T5Config.

    Version 1.1 is told by tie_word_embeddings = False, which to transformers 4 meant both a head of its own and no scaling. What
    transformers 5 writes anew says the scaling as scale_decoder_outputs, and tie_word_embeddings = True always. Either takes the
    head that the tensors have: one of its own where it differs from the word table.
    """
    stated_tie = content.get("tie_word_embeddings") is not False
    scaled = content.get("scale_decoder_outputs")
    return T5Config(**read_values(content), tie_embeddings=True, scale_logits=stated_tie if scaled is None else scaled)


def written_values(config: T5Config) -> dict[str, Any]:
    """A config like T5's -> config.json's content, without the model's type and "architectures"."""
    written = {how: name for name, how in _FEED_FORWARDS.items()}
    return {
        **dict.fromkeys(_TOKENS),
        **stated(config, _VALUES),
        "vocab_size": config.known_table_rows,
        "num_layers": config.encoder_layers,
        "num_decoder_layers": config.num_layers,
        "feed_forward_proj": written[config.activation, config.gated],
        "is_encoder_decoder": True,
        # To transformers 4 the first means both; transformers 5 reads the second, and the head from the tensors.
        "tie_word_embeddings": config.tie_embeddings or config.scale_logits,
        "scale_decoder_outputs": config.scale_logits,
    }


def config_to_huggingface(config: T5Config) -> dict[str, Any]:
    """T5Config -> config.json's content, without "architectures"."""
    return {"model_type": "t5", **written_values(config)}


def entries(config: T5Config) -> tuple[Entry, ...]:
    """Every parameter of a model like T5."""
    untied = Entry("lm_head/kernel", "lm_head.weight", "matrix", vocabulary=True)
    return (
        Entry("embeddings/table", "shared.weight", "matrix", vocabulary=True),
        *_stack(config, "encoder", config.encoder_layers, ("attention", "feed_forward")),
        *_stack(config, "decoder", config.num_layers, ("attention", "cross_attention", "feed_forward")),
        *([] if config.tie_embeddings else [untied]),
    )


_ATTENTIONS = {"attention": "SelfAttention", "cross_attention": "EncDecAttention"}


def _stack(config: T5Config, stack: str, layers: int, sublayers: tuple[str, ...]) -> tuple[Entry, ...]:
    """Every parameter of the encoder or the decoder: sublayers are numbered there."""
    found = [
        Entry(
            f"{stack}/embeddings/relative_bias/table",
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            "matrix",
        ),
        Entry(f"{stack}/norm/scale", f"{stack}.final_layer_norm.weight", "vector"),
    ]

    def add(ours: str, theirs: str, layout: Layout) -> None:
        names = (f"{stack}/layers/{ours}", f"{stack}.block.{{layer}}.layer.{theirs}.weight")
        found.append(Entry(*names, layout, layers=layers))

    for number, name in enumerate(sublayers):
        add(f"{name}_norm/scale", f"{number}.layer_norm", "vector")
        if name in _ATTENTIONS:
            for ours in ("query", "key", "value"):
                add(f"{name}/{ours}/kernel", f"{number}.{_ATTENTIONS[name]}.{ours[0]}", "linear")
            add(f"{name}/output/kernel", f"{number}.{_ATTENTIONS[name]}.o", "linear_from_heads")
        else:
            first = "wi_0" if config.gated else "wi"
            add(f"{name}/intermediate/kernel", f"{number}.DenseReluDense.{first}", "linear")
            if config.gated:
                add(f"{name}/linear/kernel", f"{number}.DenseReluDense.wi_1", "linear")
            add(f"{name}/output/kernel", f"{number}.DenseReluDense.wo", "linear")
    return tuple(found)


T5 = GeneratorFamily(
    model_type="t5",
    config=T5Config,
    objective="objectives/t5_random_spans.gin",
    prefix="",
    architectures=generator_architectures("T5ForConditionalGeneration", has_encoder=True),
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    tied=("lm_head.weight", "shared.weight"),
    # A table that old files have for the attention to the encoder, and that nothing reads.
    buffers=("EncDecAttention.relative_attention_bias.weight",),
    old_names=dict.fromkeys(_COPIES, "shared.weight"),
)
