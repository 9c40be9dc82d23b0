"""Prompts of causal LMs and of encoder-decoders: their tokens, their rows in a batch, and the texts that answer them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from bertfam.data.vocabularies import Vocabulary
from bertfam.decoding.decode import Source
from bertfam.decoding.stepper import Ends, Prompts
from bertfam.decoding.strategies import Limits
from bertfam.errors import UserError
from bertfam.models.language_model import LanguageModelConfig

# Prompts are padded to this, or twice, four times ... as much, so that few lengths are compiled.
_SHORTEST = 32


class TrainedModel(Protocol):
    """Causal LM or encoder-decoder with its parameters and vocabulary, as `bertfam.api.LanguageModel` is."""

    @property
    def config(self) -> LanguageModelConfig:
        """Config of the family."""
        ...

    @property
    def params(self) -> dict[str, Any]:
        """Parameters, see `bertfam.models.language_model`."""
        ...

    @property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary that prompts are encoded with."""
        ...

    @property
    def ends(self) -> Ends:
        """Tokens that begin and end texts."""
        ...


class PromptFormat(ABC):
    """Base class of the two formats of prompts."""

    @abstractmethod
    def encode(self, model: TrainedModel, prompt: str | np.ndarray, limits: Limits) -> np.ndarray:
        """Encode a prompt as int32[length]; raise UserError if it and the new tokens do not fit the model."""

    @abstractmethod
    def batch(self, model: TrainedModel, encoded: Sequence[np.ndarray], rows: int) -> tuple[Prompts, Source | None]:
        """Collect prompts into `rows` rows; rows beyond the prompts are padding."""

    @abstractmethod
    def spell(self, model: TrainedModel, prompt: str | np.ndarray, encoded: np.ndarray, tokens: list[int]) -> str:
        """Spell the text of a prompt and its new tokens."""


class CausalLmPrompts(PromptFormat):
    """Prompts that a causal LM continues, padded on the left."""

    @override
    def encode(self, model: TrainedModel, prompt: str | np.ndarray, limits: Limits) -> np.ndarray:
        if isinstance(prompt, str):
            tokens, begins = model.vocabulary.encode_prompt(prompt, frame=False).ids, model.config.start is not None
        else:
            tokens, begins, prompt = np.asarray(prompt, np.int32), False, model.vocabulary.decode(prompt)
        if (begins or not len(tokens)) and model.ends.start is not None:
            tokens = np.append(np.int32(model.ends.start), tokens)
        _check_not_empty(tokens)
        longest, new = model.config.max_length, limits.max_new_tokens
        if longest is not None and len(tokens) + new > longest:
            raise UserError(
                f"{_shown(prompt)} has {len(tokens)} tokens, which with {new} new ones are more than the model's {longest}; "
                "shorten it" + (f", or lower max_new_tokens to {longest - len(tokens)}" if len(tokens) < longest else "")
            )
        return tokens

    @override
    def batch(self, model: TrainedModel, encoded: Sequence[np.ndarray], rows: int) -> tuple[Prompts, Source | None]:
        length, lengths = _padded_length(model, encoded), _lengths(encoded, rows)
        table = np.full((rows, length), model.ends.fill, np.int32)
        table[np.arange(length) >= length - lengths[:, None]] = np.concatenate(encoded)
        return Prompts(jnp.asarray(table), jnp.asarray(length - lengths), jnp.asarray(lengths > 0)), None

    @override
    def spell(self, model: TrainedModel, prompt: str | np.ndarray, encoded: np.ndarray, tokens: list[int]) -> str:
        vocabulary = model.vocabulary
        # A vocabulary may drop the space of a first word.
        before = vocabulary.decode(encoded.tolist(), skip_special=True)
        whole = vocabulary.decode([*encoded.tolist(), *tokens], skip_special=True)
        return (prompt if isinstance(prompt, str) else before) + (
            whole[len(before) :] if whole.startswith(before) else vocabulary.decode(tokens, skip_special=True)
        )


class EncoderDecoderPrompts(PromptFormat):
    """Prompts that an encoder reads, padded on the right, and a decoder answers."""

    @override
    def encode(self, model: TrainedModel, prompt: str | np.ndarray, limits: Limits) -> np.ndarray:
        if isinstance(prompt, str):
            tokens = model.vocabulary.encode_prompt(prompt, frame=True).ids
        else:
            tokens, prompt = np.asarray(prompt, np.int32), model.vocabulary.decode(prompt)
        _check_not_empty(tokens)
        if model.ends.start is None:
            raise UserError("the vocabulary has no start token for the decoder: choose another vocabulary")
        longest, new = model.config.max_length, limits.max_new_tokens
        if longest is not None and len(tokens) > longest:
            raise UserError(f"{_shown(prompt)} has {len(tokens)} tokens and the model reads at most {longest}; shorten it")
        if longest is not None and new > longest:
            raise UserError(f"max_new_tokens {new} is more than the {longest} tokens that the model writes; lower it")
        return tokens

    @override
    def batch(self, model: TrainedModel, encoded: Sequence[np.ndarray], rows: int) -> tuple[Prompts, Source | None]:
        length, lengths = _padded_length(model, encoded), _lengths(encoded, rows)
        real = np.arange(length) < lengths[:, None]
        table = np.full((rows, length), model.ends.fill, np.int32)
        table[real] = np.concatenate(encoded)
        starts = jnp.asarray(np.full((rows, 1), model.ends.start, np.int32))
        prompts = Prompts(starts, jnp.zeros(rows, jnp.int32), jnp.asarray(lengths > 0))
        return prompts, Source(jnp.asarray(table), jnp.asarray(real.astype(np.int32)))

    @override
    def spell(self, model: TrainedModel, prompt: str | np.ndarray, encoded: np.ndarray, tokens: list[int]) -> str:
        dropped = set(model.vocabulary.token_ids.special)
        return model.vocabulary.decode([token for token in tokens if token not in dropped])


def prompt_format(config: LanguageModelConfig) -> PromptFormat:
    """Return the format of a model's prompts."""
    return EncoderDecoderPrompts() if config.has_encoder else CausalLmPrompts()


def _check_not_empty(tokens: np.ndarray) -> None:
    if not len(tokens):
        raise UserError("a prompt is empty and the vocabulary has no token to begin a text with; give a prompt")


def _shown(prompt: str) -> str:
    return repr(prompt if len(prompt) <= 60 else prompt[:57] + "...")


def _padded_length(model: TrainedModel, encoded: Sequence[np.ndarray]) -> int:
    longest, most = max(map(len, encoded)), model.config.max_length
    length = _SHORTEST << max(0, (longest - 1) // _SHORTEST).bit_length()
    return length if most is None else min(length, most)


def _lengths(encoded: Sequence[np.ndarray], rows: int) -> np.ndarray:
    return np.array([len(tokens) for tokens in encoded] + [0] * (rows - len(encoded)), np.int32)
