"""Text generation: a causal LM continues prompts, an encoder-decoder answers them."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bertfam.corruption import keys
from bertfam.data.vocabularies import Vocabulary
from bertfam.decoding.networks import Source, decode
from bertfam.decoding.stepper import Decoded, Ends, Prompts
from bertfam.decoding.strategies import BeamSearch, Greedy, Limits, Sample, Strategy
from bertfam.errors import UserError
from bertfam.layers.execution import Execution
from bertfam.models.language_model import LanguageModelConfig, init_language_model
from bertfam.sharding.placement import partition_spec, state_shardings
from bertfam.sharding.rules import Rules

# Prompts are padded to this, or twice, four times ... as much, so that few lengths are compiled.
_SHORTEST = 32
_EXECUTION = Execution()


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


@dataclass(frozen=True)
class Text:
    """Generated text.

    Attributes:
      text: a causal LM's prompt and its continuation, or an encoder-decoder's answer, in which sentinels separate the spans;
        without control tokens.
      tokens: ids of the new tokens, the end token included where there is one.
      log_probabilities: log-probability of each new token under the model, before temperature and constraints.
      score: by which the texts of a prompt are ranked: the score of a beam search, else the sum of `log_probabilities`.
      ended: True if the last token is an end, chosen or forced by `Ends.last`; False: cut at `Limits.max_new_tokens`.
    """

    text: str
    tokens: list[int]
    log_probabilities: list[float]
    score: float
    ended: bool

    @property
    def log_probability(self) -> float:
        """Log-probability of the whole text."""
        return float(sum(self.log_probabilities))


def generate(
    model: TrainedModel,
    prompts: Sequence[str] | Sequence[np.ndarray],
    strategy: Strategy = Greedy(),  # noqa: B008 - frozen
    limits: Limits = Limits(),  # noqa: B008
    *,
    texts: int = 1,
    batch_size: int = 8,
    mesh: jax.sharding.Mesh | None = None,
    execution: Execution = _EXECUTION,
) -> list[list[Text]]:
    """Generate texts from prompts.

    The texts of a prompt do not depend on the other prompts, nor on `batch_size` and `mesh`, up to rounding.

    Args:
      model: see `bertfam.api.load`.
      prompts: texts, in which an exactly spelt control piece is the control token, or tokens int[length], which are used
        unchanged. An empty prompt makes a causal LM begin a text.
      strategy: `Greedy`, `Sample` or `BeamSearch`.
      limits: bounds on the texts.
      texts: number of texts for each prompt; at most its beams for a beam search, one for `Greedy`.
      batch_size: prompts in a batch; with a mesh, rounded up to a multiple of its batch shards.
      mesh: devices over whose batch axes a batch is split; None: one device.
      execution: dtype and attention backend; float32 is full float32 on every platform.

    Returns:
      the texts of each prompt, the best first; fewer than `texts` only where a search finds fewer of a probability above 0.

    Raises:
      UserError: a prompt leaves no room for `limits.max_new_tokens`, the strategy has fewer than `texts` texts, or the model's
        logits are not numbers.
    """
    _check(strategy, texts, batch_size)
    encoded = [_encode(model, prompt, limits) for prompt in prompts]
    # Rows of a batch are of similar length.
    order = sorted(range(len(encoded)), key=lambda place: len(encoded[place]))
    rows = max(1, min(batch_size, len(encoded)))
    if mesh is None:
        params: Any = jax.device_put(model.params)
    else:
        parts = math.prod(mesh.shape[axis] for axis in Rules().axes("batch"))
        rows = -(-rows // parts) * parts
        boxed = jax.eval_shape(lambda key: init_language_model(model.config, key), jax.random.key(0))
        params = jax.device_put(model.params, state_shardings(boxed, mesh))
    # "float32" alone would mean TF32 on GPUs and bfloat16 passes on TPUs.
    precision = jax.default_matmul_precision("highest") if execution.dtype == "float32" else contextlib.nullcontext()
    found: dict[int, list[Text]] = {}
    with _on(mesh), precision:
        for begin in range(0, len(order), rows):
            places = order[begin : begin + rows]
            batch, source = _batch(model, [encoded[place] for place in places], rows)
            drawn = None
            if isinstance(strategy, Sample):
                drawn = _keys([encoded[place] for place in places], rows, texts, strategy.seed)
            if mesh is not None:
                split = jax.sharding.NamedSharding(mesh, partition_spec(("batch",)))
                batch, source, drawn = jax.device_put((batch, source, drawn), split)
            decoded = decode(
                params,
                batch,
                source,
                drawn,
                config=model.config,
                # Seeds are in the keys, so that another one compiles nothing.
                strategy=dataclasses.replace(strategy, seed=0) if isinstance(strategy, Sample) else strategy,
                limits=limits,
                ends=model.ends,
                texts=texts,
                execution=execution,
            )
            decoded = jax.tree.map(np.asarray, decoded)
            for row, place in enumerate(places):
                found[place] = _texts(model, prompts[place], encoded[place], jax.tree.map(lambda leaf, at=row: leaf[at], decoded))
    return [found[place] for place in range(len(encoded))]


@contextlib.contextmanager
def _on(mesh: jax.sharding.Mesh | None) -> Iterator[None]:
    """Enter a mesh and its logical axis rules."""
    if mesh is None:
        yield
        return
    with jax.set_mesh(mesh), nn.logical_axis_rules(Rules().items()):
        yield


def _check(strategy: Strategy, texts: int, batch_size: int) -> None:
    if texts < 1 or batch_size < 1:
        raise UserError(f"{texts} texts of each prompt and batches of {batch_size}: both must be at least 1")
    if isinstance(strategy, Greedy) and texts > 1:
        raise UserError(f"greedy decoding has one text of each prompt, not {texts}; use beam search or sampling")
    if isinstance(strategy, BeamSearch) and texts > strategy.beams:
        raise UserError(f"{texts} texts of each prompt are more than the {strategy.beams} beams; use more beams")


def _encode(model: TrainedModel, prompt: str | np.ndarray, limits: Limits) -> np.ndarray:
    """Encode a prompt as int32[length]; raise UserError if it and the new tokens do not fit the model."""
    config = model.config
    if isinstance(prompt, str):
        tokens, begins = model.vocabulary.encode_prompt(prompt, frame=config.has_encoder).ids, config.start is not None
    else:
        tokens, begins, prompt = np.asarray(prompt, np.int32), False, model.vocabulary.decode(prompt)
    if (begins or not len(tokens)) and not config.has_encoder and model.ends.start is not None:
        tokens = np.append(np.int32(model.ends.start), tokens)
    if not len(tokens):
        raise UserError("a prompt is empty and the vocabulary has no token to begin a text with; give a prompt")
    if config.has_encoder and model.ends.start is None:
        raise UserError("the vocabulary has no start token for the decoder: choose another vocabulary")
    longest = config.max_length
    new = limits.max_new_tokens
    if longest is None:
        return tokens
    shown = repr(prompt if len(prompt) <= 60 else prompt[:57] + "...")
    if config.has_encoder and len(tokens) > longest:
        raise UserError(f"{shown} has {len(tokens)} tokens and the model reads at most {longest}; shorten it")
    if config.has_encoder and new > longest:
        raise UserError(f"max_new_tokens {new} is more than the {longest} tokens that the model writes; lower it")
    if not config.has_encoder and len(tokens) + new > longest:
        raise UserError(
            f"{shown} has {len(tokens)} tokens, which with {new} new ones are more than the model's {longest}; shorten it"
            + (f", or lower max_new_tokens to {longest - len(tokens)}" if len(tokens) < longest else "")
        )
    return tokens


def _batch(model: TrainedModel, encoded: Sequence[np.ndarray], rows: int) -> tuple[Prompts, Source | None]:
    """Collect prompts into `rows` rows; rows beyond the prompts are padding."""
    longest = max(map(len, encoded))
    length = _SHORTEST << max(0, (longest - 1) // _SHORTEST).bit_length()
    if model.config.max_length is not None:
        length = min(length, model.config.max_length)
    lengths = np.array([len(tokens) for tokens in encoded] + [0] * (rows - len(encoded)), np.int32)
    real = lengths > 0
    places = np.arange(length)
    before = model.config.has_encoder  # padding follows an encoder's tokens and precedes a decoder's
    inside = places < lengths[:, None] if before else places >= length - lengths[:, None]
    table = np.full((rows, length), model.ends.fill, np.int32)
    table[inside] = np.concatenate(encoded)
    if not before:
        return Prompts(jnp.asarray(table), jnp.asarray(length - lengths), jnp.asarray(real)), None
    started = Prompts(jnp.asarray(np.full((rows, 1), model.ends.start, np.int32)), jnp.zeros(rows, jnp.int32), jnp.asarray(real))
    return started, Source(jnp.asarray(table), jnp.asarray(inside.astype(np.int32)))


def _keys(encoded: Sequence[np.ndarray], rows: int, texts: int, seed: int) -> jax.Array:
    """Return uint32[rows, texts, 2]; each key depends on the seed, its prompt and the number of the text alone."""
    text_keys = np.zeros((rows, texts), np.uint64)
    for row, tokens in enumerate(encoded):
        content = np.bitwise_xor.reduce(keys.fold(seed, np.arange(len(tokens)), tokens))
        text_keys[row] = keys.fold(content, np.arange(texts))
    return jnp.asarray(text_keys.view(np.uint32).reshape(rows, texts, 2))


def _texts(model: TrainedModel, prompt: str | np.ndarray, encoded: np.ndarray, row: Decoded) -> list[Text]:
    """Return the texts of one prompt."""
    made = []
    for place in np.flatnonzero(row.possible):
        length = int(row.lengths[place])
        tokens = row.tokens[place, :length].tolist()
        log_probabilities = row.log_probabilities[place, :length].tolist()
        if np.isnan(log_probabilities).any():
            raise UserError("the model's logits are not numbers, so it generates no text: did its training diverge?")
        ended = bool(tokens) and tokens[-1] in model.ends.ids
        made.append(Text(_spell(model, prompt, encoded, tokens), tokens, log_probabilities, float(row.scores[place]), ended))
    return made


def _spell(model: TrainedModel, prompt: str | np.ndarray, encoded: np.ndarray, tokens: list[int]) -> str:
    vocabulary = model.vocabulary
    if model.config.has_encoder:
        dropped = set(vocabulary.token_ids.special)
        return vocabulary.decode([token for token in tokens if token not in dropped])
    # A vocabulary may drop the space of a first word.
    before = vocabulary.decode(encoded.tolist(), skip_special=True)
    whole = vocabulary.decode([*encoded.tolist(), *tokens], skip_special=True)
    return (prompt if isinstance(prompt, str) else before) + (
        whole[len(before) :] if whole.startswith(before) else vocabulary.decode(tokens, skip_special=True)
    )
