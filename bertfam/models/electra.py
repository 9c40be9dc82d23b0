"""ELECTRA (Clark, Luong, Le, Manning 2020): BERT's encoder as a discriminator, and a smaller generator."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from bertfam.errors import UserError
from bertfam.layers.activations import Activation
from bertfam.layers.execution import Execution
from bertfam.layers.heads.classification import Classifier, DenseOutputLayer
from bertfam.layers.heads.pretraining import TokenHead
from bertfam.models.bert import (
    BertConfig,
    dense_classifier_entries,
    encoder_entries,
    masked_lm_entries,
    read_values,
    write_values,
)
from bertfam.models.mapping import Entry, Family, dense

_EXECUTION = Execution()
_SUMMARY_DROPOUT = 0.1  # `summary_last_dropout`, whatever the rate of the layers is
_HEAD_DIM = 64


@dataclass(frozen=True)
class ElectraConfig(BertConfig):
    """Configuration of one of ELECTRA's networks; the defaults are the discriminator of ELECTRA-base. See `BertConfig`.

    The masked-token head, which generators have, is computed with the error function's gelu, whatever `activation` is.
    """

    objective_file: ClassVar[str] = "objectives/electra.gin"

    head_activation: Activation | None = "gelu"

    @override
    def classifier(self, outputs: int, execution: Execution = _EXECUTION) -> Classifier:
        return self.dense_classifier(outputs, execution, "gelu")

    @override
    def choice_classifier(self, execution: Execution = _EXECUTION) -> Classifier:
        output = DenseOutputLayer(
            1, "gelu", dropout_rate=_SUMMARY_DROPOUT, initializer_range=self.initializer_range, execution=execution
        )
        return Classifier("cls", output)

    def generator(self, width: float, depth: float) -> "ElectraConfig":
        """Return the generator of this discriminator, whose tables it shares (Clark et al. 2020, section 3.2, and its code).

        It has round(width * hidden_size) units, round(depth * num_layers) layers, four times its width in the feed-forward layers
        and as many heads of at least 64 units as divide its width, one at least.

        Args:
          width: the fraction of the hidden size.
          depth: the fraction of the layers.

        Raises:
          UserError: when such sizes do not go together.
        """
        hidden_size = round(width * self.hidden_size)
        most_heads = max(1, hidden_size // _HEAD_DIM)
        sizes: dict[str, Any] = {
            "hidden_size": hidden_size,
            "num_layers": round(depth * self.num_layers),
            "num_heads": next(heads for heads in range(most_heads, 0, -1) if hidden_size % heads == 0),
            "feed_forward_size": 4 * hidden_size,
            "embedding_size": self.table_width,
        }
        try:
            return dataclasses.replace(self, **sizes)
        except UserError as error:
            message = f"generator_width {width} and generator_depth {depth} give no generator of this model: {error}"
            raise UserError(message) from error


def replaced_token_head(config: BertConfig, execution: Execution = _EXECUTION) -> TokenHead:
    """Return the replaced-token head: hidden states [..., embed] -> float32[...] logits of a token being replaced."""
    return TokenHead(config.activation, config.initializer_range, execution)


def config_from_huggingface(content: Mapping[str, Any]) -> ElectraConfig:
    """Read config.json's content into ElectraConfig; raises UserError for any other variant of ELECTRA."""
    values, width = read_values(content), content.get("embedding_size")
    if type(width) is not int:
        raise UserError("config.json: embedding_size must be stated, as a whole number")
    return ElectraConfig(embedding_size=width, **values)


def config_to_huggingface(config: ElectraConfig) -> dict[str, Any]:
    """Write ElectraConfig as config.json's content, without "architectures"."""
    values = write_values(config, head="gelu", has=("embedding_size",))
    return {"model_type": "electra", **values, "embedding_size": config.table_width}


def entries(config: ElectraConfig) -> tuple[Entry, ...]:
    """Return the entries of every parameter of the encoder and of both heads."""
    encoder = [entry for entry in encoder_entries("electra.", config) if entry.part == "encoder"]
    projection = dense("encoder/embeddings/projection", "electra.embeddings_project")
    head, decoder = "generator_predictions", "generator_lm_head"
    masked = masked_lm_entries(config, f"{head}.dense", f"{head}.LayerNorm", decoder, f"{decoder}.bias")
    return (
        *encoder,
        *(projection if config.table_width != config.hidden_size else ()),
        *masked,
        *dense("rtd_head/dense", "discriminator_predictions.dense"),
        *dense("rtd_head/prediction", "discriminator_predictions.dense_prediction"),
        *dense_classifier_entries(),
        *dense("choice_classifier/dense", "sequence_summary.summary"),
        *dense("choice_classifier/output", "classifier"),
    )


ELECTRA = Family(
    model_type="electra",
    config=ElectraConfig,
    objective="objectives/electra.gin",
    objectives_by_part={"mlm_head": "objectives/mlm.gin"},
    prefix="electra.",
    architectures={
        frozenset({"encoder"}): "ElectraModel",
        frozenset({"encoder", "rtd_head"}): "ElectraForPreTraining",
        frozenset({"encoder", "mlm_head"}): "ElectraForMaskedLM",
        frozenset({"encoder", "classifier"}): "ElectraForSequenceClassification",
        frozenset({"encoder", "token_classifier"}): "ElectraForTokenClassification",
        frozenset({"encoder", "span_classifier"}): "ElectraForQuestionAnswering",
        frozenset({"encoder", "choice_classifier"}): "ElectraForMultipleChoice",
    },
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    heads=lambda config: {"rtd_head": replaced_token_head(config)},
    tied=("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),
    buffers=("position_ids", "token_type_ids"),
)
