"""DistilBERT (Sanh, Debut, Chaumond, Wolf 2019): half of BERT's layers, without sentence types and without a pooler."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from typing_extensions import override

from bertfam.errors import UserError
from bertfam.layers.execution import Execution
from bertfam.layers.heads.classification import Classifier
from bertfam.models.bert import BertConfig, masked_lm_entries, read_values, token_classifier_entries, write_values
from bertfam.models.mapping import CHOICE_CLASSIFIER, CLASSIFIER, Entry, Family, dense, norm

_EXECUTION = Execution()


@dataclass(frozen=True)
class DistilBertConfig(BertConfig):
    """Configuration of a DistilBERT; the defaults are DistilBERT-base. See `BertConfig`."""

    num_layers: int = 6
    type_vocab_size: int = 0

    @property
    @override
    def classifier_dropout_rate(self) -> float:
        return 0.2  # `seq_classif_dropout`, whatever the rate of the layers is

    @property
    @override
    def span_classifier_dropout_rate(self) -> float:
        return 0.1  # `qa_dropout`, whatever the rate of the layers is

    @property
    @override
    def token_classifier_dropout_rate(self) -> float:
        return self.dropout_rate

    @override
    def classifier(self, outputs: int, execution: Execution = _EXECUTION) -> Classifier:
        return self.dense_classifier(outputs, execution, "relu", drops_input=False)

    @override
    def choice_classifier(self, execution: Execution = _EXECUTION) -> Classifier:
        return self.classifier(1, execution)


# DistilBERT's word -> BERT's
_WORDS = {
    "n_layers": "num_hidden_layers",
    "dim": "hidden_size",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
# BERT's words that DistilBERT has not, with what it computes
_FIXED = {"type_vocab_size": 0, "layer_norm_eps": 1e-12}


def config_from_huggingface(content: Mapping[str, Any]) -> DistilBertConfig:
    """Read config.json's content into DistilBertConfig; raises UserError for any other variant of DistilBERT."""
    if content.get("sinusoidal_pos_embds"):
        raise UserError("config.json: sinusoidal_pos_embds = True is not supported, only False: positions are learned here")
    missing = [name for name in ("n_layers", "dim", "n_heads", "hidden_dim") if type(content.get(name)) is not int]
    if missing:
        raise UserError(f"config.json: {', '.join(missing)} must be stated, as whole numbers")
    words = {_WORDS.get(name, name): value for name, value in content.items() if name not in _WORDS.values()}
    return DistilBertConfig(**read_values(words | _FIXED))


def config_to_huggingface(config: DistilBertConfig) -> dict[str, Any]:
    """Write DistilBertConfig as config.json's content, without "architectures".

    Raises:
      UserError: for what no DistilBERT can represent.
    """
    values = write_values(config, has=("type_vocab_size",))
    for name, value in _FIXED.items():
        if values.pop(name) != value:
            ours = {"layer_norm_eps": "layer_norm_epsilon"}.get(name, name)
            raise UserError(
                f"DistilBertConfig.{ours} = {getattr(config, ours)!r} has no place in transformers' DistilBERT, which has "
                f"{value!r}; a model like it is a BertConfig"
            )
    del values["position_embedding_type"]
    theirs = {bert: distilbert for distilbert, bert in _WORDS.items()}
    renamed = {theirs.get(name, name): value for name, value in values.items()}
    return {"model_type": "distilbert", "sinusoidal_pos_embds": False, **renamed}


def entries(config: DistilBertConfig) -> tuple[Entry, ...]:
    """Return the entries of every parameter of the encoder and of the masked-token head."""
    prefix, layer = "distilbert.", "encoder/layers/"
    theirs = f"{prefix}transformer.layer.{{layer}}."
    attention = [
        entry
        for ours, name in (("query", "q_lin"), ("key", "k_lin"), ("value", "v_lin"))
        for entry in dense(f"{layer}attention/{ours}", f"{theirs}attention.{name}")
    ]
    return (
        Entry("encoder/embeddings/word/table", f"{prefix}embeddings.word_embeddings.weight", "matrix", vocabulary=True),
        Entry("encoder/embeddings/position/table", f"{prefix}embeddings.position_embeddings.weight", "matrix"),
        *norm("encoder/embeddings/norm", f"{prefix}embeddings.LayerNorm"),
        *attention,
        *dense(f"{layer}attention/output", f"{theirs}attention.out_lin", "linear_from_heads"),
        *norm(f"{layer}attention_norm", f"{theirs}sa_layer_norm"),
        *dense(f"{layer}feed_forward/intermediate", f"{theirs}ffn.lin1"),
        *dense(f"{layer}feed_forward/output", f"{theirs}ffn.lin2"),
        *norm(f"{layer}feed_forward_norm", f"{theirs}output_layer_norm"),
        *masked_lm_entries(config, "vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"),
        *chain.from_iterable(
            (*dense(f"{part}/dense", "pre_classifier"), *dense(f"{part}/output", "classifier"))
            for part in (CLASSIFIER, CHOICE_CLASSIFIER)
        ),
        *token_classifier_entries(),
    )


DISTILBERT = Family(
    model_type="distilbert",
    config=DistilBertConfig,
    objective="objectives/mlm.gin",
    prefix="distilbert.",
    architectures={
        frozenset({"encoder"}): "DistilBertModel",
        frozenset({"encoder", "mlm_head"}): "DistilBertForMaskedLM",
        frozenset({"encoder", "classifier"}): "DistilBertForSequenceClassification",
        frozenset({"encoder", "token_classifier"}): "DistilBertForTokenClassification",
        frozenset({"encoder", "span_classifier"}): "DistilBertForQuestionAnswering",
        frozenset({"encoder", "choice_classifier"}): "DistilBertForMultipleChoice",
    },
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    tied=("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),
    buffers=("position_ids",),
)
