"""Text generation: a causal LM continues prompts, an encoder-decoder answers them."""

import contextlib
import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bertfam.call_arguments import check_list, check_whole_number, describe
from bertfam.corruption import keys
from bertfam.decoding.decode import decode, divided_on_cpu
from bertfam.decoding.prompts import PromptFormat, TrainedModel, check_prompt, prompt_format
from bertfam.decoding.stepper import Decoded
from bertfam.decoding.strategies import BeamSearch, Greedy, Limits, Sample, Strategy, resolve
from bertfam.errors import UserError
from bertfam.layers.execution import Execution
from bertfam.models.language_model import init_language_model
from bertfam.sharding.named_shardings import partition_spec, state_shardings
from bertfam.sharding.rules import Rules

_EXECUTION = Execution()


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
    strategy: Strategy | str = Greedy(),  # noqa: B008 - frozen
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
      strategy: `Greedy`, `Sample` or `BeamSearch`; or the name of a preset of `bertfam generate --strategy`: "greedy", "beam"
        (5 beams, and no 2-gram twice unless `limits` states another length) or "sample" (top_k=50, top_p=0.95).
      limits: bounds on the texts.
      texts: number of texts for each prompt; at most its beams for a beam search, one for `Greedy`.
      batch_size: prompts in a batch; with a mesh, rounded up to a multiple of its batch shards.
      mesh: devices over whose batch axes a batch is split; None: one device.
      execution: dtype and attention backend; float32 is full float32 on every platform.

    Returns:
      the texts of each prompt, the best first; fewer than `texts` only where a search finds fewer of a probability above 0.

    Raises:
      UserError: an argument has another type, a prompt leaves no room for `limits.max_new_tokens`, the strategy has fewer than
        `texts` texts, or the model's logits are not numbers.
    """
    strategy, limits = resolve(strategy, limits)
    _check(strategy, texts, batch_size, mesh, execution)
    checked = _check_prompts(prompts, model)
    form = prompt_format(model.config)
    encoded = [form.encode(model, prompt, limits) for prompt in checked]
    # Rows of a batch are of similar length.
    order = sorted(range(len(encoded)), key=lambda place: len(encoded[place]))
    rows = max(1, min(batch_size, len(encoded)))
    if mesh is None:
        params: Any = divided_on_cpu(model.params)
    else:
        parts = math.prod(mesh.shape[axis] for axis in Rules().axes("batch"))
        rows = -(-rows // parts) * parts
        boxed = jax.eval_shape(lambda key: init_language_model(model.config, key), jax.random.key(0))
        params = jax.device_put(model.params, state_shardings(boxed, mesh))
    # "float32" alone would mean TF32 on GPUs and bfloat16 passes on TPUs.
    precision = jax.default_matmul_precision("highest") if execution.concrete.dtype == "float32" else contextlib.nullcontext()
    found: dict[int, list[Text]] = {}
    with _on(mesh), precision:
        for begin in range(0, len(order), rows):
            places = order[begin : begin + rows]
            batch, source = form.batch(model, [encoded[place] for place in places], rows)
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
                own = jax.tree.map(lambda leaf, at=row: leaf[at], decoded)
                found[place] = _texts(model, form, checked[place], encoded[place], own)
    return [found[place] for place in range(len(encoded))]


# Names of arguments in transformers -> fields of strategies and limits, or arguments.
_ELSEWHERE = {
    "do_sample": 'strategy="sample"',
    "max_length": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "min_length": "min_new_tokens",
    "no_repeat_ngram_size": "no_repeat_ngrams",
    "num_beams": "beams",
    "num_return_sequences": "texts=...",
}


@contextlib.contextmanager
def _on(mesh: jax.sharding.Mesh | None) -> Iterator[None]:
    """Enter a mesh and its logical axis rules."""
    if mesh is None:
        yield
        return
    with jax.set_mesh(mesh), nn.logical_axis_rules(Rules().items()):
        yield


def check_options(options: Collection[str]) -> None:
    """Raise UserError for options of `generate` that are fields of a strategy or of the limits, or are called so elsewhere.

    Args:
      options: the names of keyword arguments; Python refuses others that `generate` does not have.
    """
    for name in options:
        own = _ELSEWHERE.get(name, name)
        for cls, argument in ((Limits, "limits"), (Sample, "strategy"), (BeamSearch, "strategy")):
            if own in {field.name for field in dataclasses.fields(cls)}:
                raise UserError(f"generate has no argument {name}: write {argument}={cls.__name__}({own}=...)")
        if own != name:
            raise UserError(f"generate has no argument {name}: write {own}")


def _check_prompts(prompts: Any, model: TrainedModel) -> list[str | np.ndarray]:
    given = check_list(prompts, "prompts", "texts, or of arrays of token ids")
    return [check_prompt(prompt, f"prompts[{place}]", model.vocabulary) for place, prompt in enumerate(given)]


def _check(strategy: Strategy, texts: int, batch_size: int, mesh: Any, execution: Any) -> None:
    check_whole_number(texts, "texts")
    check_whole_number(batch_size, "batch_size")
    if not isinstance(mesh, jax.sharding.Mesh | None):
        raise UserError(f"mesh must be a jax.sharding.Mesh, as of MeshShape(...).build(), or None, not {describe(mesh)}")
    if not isinstance(execution, Execution):
        raise UserError(f"execution must be Execution(...), not {describe(execution)}")
    if texts < 1 or batch_size < 1:
        raise UserError(f"{texts} texts of each prompt and batches of {batch_size}: both must be at least 1")
    if isinstance(strategy, Greedy) and texts > 1:
        raise UserError(f"greedy decoding has one text of each prompt, not {texts}; use beam search or sampling")
    if isinstance(strategy, BeamSearch) and texts > strategy.beams:
        raise UserError(f"{texts} texts of each prompt are more than the {strategy.beams} beams; use more beams")


def _keys(encoded: Sequence[np.ndarray], rows: int, texts: int, seed: int) -> jax.Array:
    """Return uint32[rows, texts, 2]; each key depends on the seed, its prompt and the number of the text alone."""
    text_keys = np.zeros((rows, texts), np.uint64)
    for row, tokens in enumerate(encoded):
        content = np.bitwise_xor.reduce(keys.fold(seed, np.arange(len(tokens)), tokens))
        text_keys[row] = keys.fold(content, np.arange(texts))
    return jnp.asarray(text_keys.view(np.uint32).reshape(rows, texts, 2))


def _texts(model: TrainedModel, form: PromptFormat, prompt: str | np.ndarray, encoded: np.ndarray, row: Decoded) -> list[Text]:
    """Return the texts of one prompt."""
    made = []
    for place in np.flatnonzero(row.possible):
        length = int(row.lengths[place])
        tokens = row.tokens[place, :length].tolist()
        log_probabilities = row.log_probabilities[place, :length].tolist()
        if np.isnan(log_probabilities).any():
            raise UserError("the model's logits are not numbers, so it generates no text: did its training diverge?")
        ended = bool(tokens) and tokens[-1] in model.ends.ids
        made.append(Text(form.spell(model, prompt, encoded, tokens), tokens, log_probabilities, float(row.scores[place]), ended))
    return made
