"""Masked-token prediction: the likeliest tokens at each mask of a text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertfam.call_arguments import check_texts, check_whole_number, describe
from bertfam.decoding.hidden_tokens import HiddenTokens, MaskedPredictor, TrainedEncoder, predict
from bertfam.errors import UserError


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
            "the model has no masked-language-model head, so it cannot fill: it was pretrained without masks, as word2vec and "
            "ELMo's model are, or fine-tuned, imported or exported without the head"
        )
    mask = model.vocabulary.token_ids.mask
    encoded = [check(model, text) for text in texts]
    places = [np.flatnonzero(tokens == mask) for tokens in encoded]
    rows = [HiddenTokens(tokens, own, len(own)) for tokens, own in zip(encoded, places, strict=True)]
    found = predict(MaskedPredictor(model), rows, top_k=min(top_k, model.vocabulary.size))
    if np.isnan(found.best_log_probabilities).any():
        raise UserError("the model's logits are not numbers, so it fills no mask: did its training diverge?")
    probabilities = np.exp(found.best_log_probabilities)
    results = []
    for own, best, likely in zip(places, found.best.tolist(), probabilities.tolist(), strict=True):
        masks = []
        for position, ids, chances in zip(own.tolist(), best[: len(own)], likely[: len(own)], strict=True):
            candidates = zip(ids, model.vocabulary.pieces(ids), chances, strict=True)
            masks.append(Mask(position, [Prediction(*candidate) for candidate in candidates]))
        results.append(masks)
    return results
