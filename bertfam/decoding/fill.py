"""Masked-token prediction: the likeliest tokens at each mask of a text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from bertfam.call_arguments import check_texts, check_whole_number, describe
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.models.encoder import MaskedLmConfig

# Rows are padded to a multiple of this, so that few lengths are compiled.
_MULTIPLE = 32


class TrainedEncoder(Protocol):
    """Encoder with its parameters and vocabulary, as `bertfam.api.Model` is."""

    @property
    def config(self) -> MaskedLmConfig:
        """Config of the family."""
        ...

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the encoder and its heads."""
        ...

    @property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary that texts are encoded with."""
        ...

    def apply(
        self, tokens: np.ndarray, *, segment_ids: np.ndarray | None = None, masked_positions: np.ndarray | None = None
    ) -> dict[str, jax.Array]:
        """Run the model, see `bertfam.api.Model.apply`."""
        ...


@dataclass(frozen=True)
class Prediction:
    """Candidate token for a mask."""

    token_id: int
    token: str
    probability: float


@dataclass(frozen=True)
class Mask:
    """Mask of a text: its position among the tokens ([CLS] is 0), and its candidates, the likeliest first."""

    position: int
    predictions: list[Prediction]


def select_masked_lm(networks: Mapping[str, Any]) -> TrainedEncoder:
    """Select the first encoder with a masked-language-model head, such as ELECTRA's generator, else the first encoder.

    Args:
      networks: the networks of `bertfam.api.load_networks`.

    Raises:
      UserError: if no network is an encoder, or one model is given in place of the networks by name.
    """
    if not isinstance(networks, Mapping):
        raise UserError(f"networks must be models by name, as of load_networks, not {describe(networks)}")
    encoders = [model for model in networks.values() if "decoder" not in model.params]
    if not encoders:
        raise UserError("the model has a decoder and no masks to fill; use bertfam generate")
    return next((model for model in encoders if "mlm_head" in model.params), encoders[0])


def check(model: TrainedEncoder, text: str) -> np.ndarray:
    """Encode a text: int32[length]; raise UserError if it has no mask or is too long."""
    mask = model.vocabulary.token_ids.require("mask", "filling in")
    tokens = model.vocabulary.encode_prompt(text).ids
    shown = text if len(text) <= 60 else text[:57] + "..."
    if not np.any(tokens == mask):
        spelt = model.vocabulary.pieces([mask])[0]
        raise UserError(f"no {spelt} in {shown!r}; write {spelt} where a token is to be filled in")
    if len(tokens) > model.config.max_length:
        raise UserError(f"{shown!r} has {len(tokens)} tokens and the model reads at most {model.config.max_length}; shorten it")
    return tokens


def fill(model: TrainedEncoder, texts: Sequence[str], top_k: int = 5) -> list[list[Mask]]:
    """Predict the tokens at the masks of texts.

    Args:
      model: a model with a masked-language-model head.
      texts: texts with at least one literal [MASK], or the vocabulary's own spelling of it.
      top_k: number of candidates for each mask, at least 1.

    Returns:
      the masks of each text, in order.

    Raises:
      UserError: if the model has no such head, a text has no mask or is too long, or an argument has another type.
    """
    texts = check_texts(texts, "texts")
    if check_whole_number(top_k, "top_k") < 1:
        raise UserError(f"top_k is {top_k}, and must be at least 1")
    if "mlm_head" not in model.params and "rtd_head" in model.params:
        raise UserError(
            "the model is a discriminator, which detects replaced tokens and predicts none, so it cannot fill; give "
            "the folder of its generator, or of the run that trained both"
        )
    if "mlm_head" not in model.params:
        raise UserError(
            "the model has no masked-language-model head, so it cannot fill: it was fine-tuned, imported or exported without one"
        )
    encoded = [check(model, text) for text in texts]
    length = min(-(-max(map(len, encoded), default=0) // _MULTIPLE) * _MULTIPLE, model.config.max_length)
    results = []
    for tokens in encoded:
        row = np.full((1, length), model.vocabulary.token_ids.pad, np.int32)
        row[0, : len(tokens)] = tokens
        segments = (np.arange(length) < len(tokens))[None].astype(np.int32)
        positions = np.flatnonzero(tokens == model.vocabulary.token_ids.mask)
        logits = model.apply(row, segment_ids=segments, masked_positions=positions[None])["mlm_logits"][0]
        # [masks, vocabulary] -> [masks, top_k] each
        probabilities, ids = jax.lax.top_k(jax.nn.softmax(logits), min(top_k, logits.shape[-1]))
        if np.isnan(probabilities).any():
            raise UserError("the model's logits are not numbers, so it fills no mask: did its training diverge?")
        masks = []
        for position, best, likely in zip(positions.tolist(), ids.tolist(), probabilities.tolist(), strict=True):
            candidates = zip(best, model.vocabulary.pieces(best), likely, strict=True)
            masks.append(Mask(position, [Prediction(*candidate) for candidate in candidates]))
        results.append(masks)
    return results
