"""ELECTRA's two networks in Hugging Face's files: `ElectraForPreTraining` discriminates, `ElectraForMaskedLM` generates."""

from collections.abc import Mapping
from typing import Any

from bertfam.errors import UserError
from bertfam.models.bert_huggingface import dense, encoder_entries, masked_lm_entries, read_values, written_values
from bertfam.models.electra import ElectraConfig, replaced_token_head
from bertfam.models.mapping import Entry, Family


def config_from_huggingface(content: Mapping[str, Any]) -> ElectraConfig:
    """config.json's content -> ElectraConfig; raises UserError for a model that is not this ELECTRA."""
    values, width = read_values(content), content.get("embedding_size")
    if type(width) is not int:
        raise UserError("config.json: embedding_size must be stated, as a whole number")
    return ElectraConfig(embedding_size=width, **values)


def config_to_huggingface(config: ElectraConfig) -> dict[str, Any]:
    """ElectraConfig -> config.json's content, without "architectures"."""
    values = written_values(config, head="gelu", has=("embedding_size",))
    return {"model_type": "electra", **values, "embedding_size": config.table_width}


def entries(config: ElectraConfig) -> tuple[Entry, ...]:
    """Every parameter of the encoder and of both heads."""
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
    },
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    heads=lambda config: {"rtd_head": replaced_token_head(config)},
    tied=("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),
    buffers=("position_ids", "token_type_ids"),
)
