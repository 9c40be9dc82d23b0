"""Training of all probes of a task at once, in one compiled program."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertfam.analysis.probes.data import ProbeData, ProbeSplit
from bertfam.analysis.probes.networks import PROBES
from bertfam.errors import UserError
from bertfam.layers.heads.scalar_mix import layer_shares

TASK, CONTROL = 0, 1  # rows of the labels
_MIX = "mix"  # part of a probe's parameters
# The logits of a mix have to move by several units, other weights by fractions of one.
_MIX_RATE = 10


@dataclass(frozen=True)
class ProbeSettings:
    """Settings of probes.

    Attributes:
      probe: name of the network, one of `PROBES`.
      hidden: hidden units, of those networks that have them.
      epochs: passes over the training targets.
      batch_size: targets of an update.
      learning_rate: rate of Adam, which falls linearly to 0; that of a mix's weights is 10 times as high.
      seeds: seeds of the first parameters and of the order of the targets.
    """

    probe: str = "linear"
    hidden: int = 256
    epochs: int = 10
    batch_size: int = 256
    learning_rate: float = 5e-3
    seeds: tuple[int, ...] = (0, 1, 2)


class ProbeScores(NamedTuple):
    """Accuracies of the probes of one seed, and the weights of the mix.

    Attributes:
      layers: float64[layers + 1], of probes that read one layer.
      cumulative: float64[layers + 1], of probes that read a mix of the layers 0 to l; the last one reads the mix of all.
      control: float64[layers + 1], of the control task, with one layer.
      control_mix: the same with the mix of all layers.
      weights: float64[layers + 1], share of each layer in the mix of all.
    """

    layers: np.ndarray
    cumulative: np.ndarray
    control: np.ndarray
    control_mix: float
    weights: np.ndarray


class _Probes(NamedTuple):
    """The layers bool[probes, layers + 1] that each probe reads, and the row of its labels int32[probes]."""

    among: np.ndarray
    rows: np.ndarray


def _probes(count: int) -> _Probes:
    """Return the probes of `count` layers: of each alone, of layers 0 to l, and of the control task."""
    alone, up_to = np.eye(count, dtype=bool), np.tril(np.ones((count, count), bool))
    # The mix of layer 0 alone is that layer.
    among = np.concatenate([alone, up_to[1:], alone, up_to[-1:]])
    return _Probes(among, np.repeat([TASK, CONTROL], [2 * count - 1, count + 1]).astype(np.int32))


class ProbeTrainer:
    """Trains the probes of a task side by side, for features of any parameters.

    Each update computes the gradients of all probes in one program, from the same targets. Seeds differ in the probes' first
    parameters and in the order of the targets.
    """

    def __init__(self, data: ProbeData, shape: tuple[int, int], settings: ProbeSettings) -> None:
        """Prepare the programs.

        Args:
          data: the targets.
          shape: layers + 1 and embedding dimension of the features.
          settings: settings of the probes.
        """
        network = PROBES[settings.probe](len(data.classes), settings.hidden)
        self._settings, self._layers = settings, shape[0]
        self._probes = _probes(shape[0])
        self._count = len(data.train.labels)
        self._batch_size = min(settings.batch_size, self._count)
        self._train = _Split.create(data, data.train, (batch for seed in settings.seeds for batch in self._orders(seed)))
        self._held_out = _Split.create(data, data.held_out, self._held_out_batches(len(data.held_out.labels)))
        optimizer = _optimizer(settings, self.updates)
        apply = jax.vmap(lambda own, inputs, among: network.apply({"params": own}, *inputs, among), in_axes=(0, None, 0))

        def logits(params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
            inputs = (batch["states"], batch["segments"], batch["sizes"])
            return jnp.asarray(apply(params, inputs, self._probes.among))  # [probes, targets, outputs]

        def loss(params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
            labels = batch["labels"][self._probes.rows]  # [probes, targets]
            losses = optax.softmax_cross_entropy_with_integer_labels(logits(params, batch), labels)
            return losses.mean(axis=1).sum()  # each probe has parameters of its own

        def start(key: jax.Array) -> tuple[Any, Any]:
            inputs = jnp.zeros((1, *shape)), jnp.zeros(1, jnp.int32), jnp.ones((1, data.spans)), self._probes.among[0]
            keys = jax.random.split(key, len(self._probes.rows))
            params = jax.vmap(lambda own: nn.meta.unbox(network.init(own, *inputs)["params"]))(keys)
            return params, optimizer.init(params)

        def update(state: tuple[Any, Any], batch: Mapping[str, jax.Array]) -> tuple[Any, Any]:
            params, moments = state
            updates, moments = optimizer.update(jax.grad(loss)(params, batch), moments, params)
            return optax.apply_updates(params, updates), moments

        self._start, self._update = jax.jit(start), jax.jit(update, donate_argnums=0)
        self._predict = jax.jit(lambda params, batch: jnp.argmax(logits(params, batch), axis=-1))

    @property
    def count(self) -> int:
        """Number of probes that are trained at once."""
        return len(self._probes.rows)

    @property
    def updates(self) -> int:
        """Number of updates of a seed."""
        return self._settings.epochs * (self._count // self._batch_size)

    def scores(self, train: np.ndarray, held_out: np.ndarray, seed: int) -> ProbeScores:
        """Train all probes with a seed, and score them on the held-out targets.

        Args:
          train: float32[tokens, layers + 1, embed], features of the tokens to train on.
          held_out: the same of the held-out targets.
          seed: seed of the probes.

        Raises:
          UserError: a parameter of a probe is NaN or infinite at the end of the training.
        """
        params, moments = self._start(jax.random.key(seed))
        for chosen in self._orders(seed):
            params, moments = self._update((params, moments), self._train.batch(train, chosen))
        if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(params)):
            rate = self._settings.learning_rate
            raise UserError(
                f"the probes of seed {seed} are NaN or infinite after training with --learning_rate={rate:g}: lower the rate, or "
                "probe an earlier checkpoint if the model itself diverged"
            )
        count = self._layers
        accuracy = self._accuracies(params, held_out)
        shares = layer_shares(params[_MIX]["weights"], jnp.asarray(self._probes.among))
        return ProbeScores(
            accuracy[:count],
            np.concatenate([accuracy[:1], accuracy[count : 2 * count - 1]]),
            accuracy[2 * count - 1 : -1],
            float(accuracy[-1]),
            np.asarray(shares[2 * count - 2], np.float64),
        )

    def _orders(self, seed: int) -> Iterator[np.ndarray]:
        """Yield the targets int64[batch] of each update; those beyond the last whole batch of an epoch are left out of it."""
        generator = np.random.default_rng(seed)
        whole = self._count // self._batch_size * self._batch_size
        for _ in range(self._settings.epochs):
            yield from generator.permutation(self._count)[:whole].reshape(-1, self._batch_size)

    def _held_out_batches(self, count: int) -> Iterator[np.ndarray]:
        """Yield batches of all held-out targets in order, int64[batch]; the last one repeats the last target."""
        for begin in range(0, count, self._batch_size):
            yield np.minimum(np.arange(begin, begin + self._batch_size), count - 1)

    def _accuracies(self, params: Any, features: np.ndarray) -> np.ndarray:
        """Return the share of the held-out targets that each probe predicts: float64[probes]."""
        labels = self._held_out.labels
        batches = (self._held_out.batch(features, chosen) for chosen in self._held_out_batches(labels.shape[1]))
        predicted = np.concatenate([np.asarray(self._predict(params, batch)) for batch in batches], axis=1)
        found: np.ndarray = (predicted[:, : labels.shape[1]] == labels[self._probes.rows]).mean(axis=1)
        return found


@dataclass(frozen=True)
class _Split:
    """Targets of a split, and their batches, all of one shape.

    Attributes:
      split: the targets.
      labels: int32[2, targets], of the task and of the control task.
      capacity: tokens of the largest batch.
    """

    split: ProbeSplit
    labels: np.ndarray
    capacity: int

    @classmethod
    def create(cls, data: ProbeData, split: ProbeSplit, batches: Iterable[np.ndarray]) -> Self:
        """Prepare a split for batches of targets."""
        tokens = split.sizes.sum(axis=1)
        return cls(split, data.labels(split), max(int(tokens[chosen].sum()) for chosen in batches))

    def batch(self, features: np.ndarray, chosen: np.ndarray) -> dict[str, np.ndarray]:
        """Return the features and labels of targets int64[n]."""
        tokens, segments = self.split.span_tokens(chosen)
        sizes = self.split.sizes[chosen]
        padding = self.capacity - len(tokens)
        return {
            "states": np.pad(features[tokens], ((0, padding), (0, 0), (0, 0))),
            "segments": np.pad(segments, (0, padding), constant_values=sizes.size).astype(np.int32),
            "sizes": sizes.astype(np.float32),
            "labels": self.labels[:, chosen],
        }


def _optimizer(settings: ProbeSettings, updates: int) -> optax.GradientTransformation:
    rates = {"mix": _MIX_RATE * settings.learning_rate, "rest": settings.learning_rate}
    return optax.multi_transform(
        {name: optax.adam(optax.linear_schedule(rate, 0.0, updates)) for name, rate in rates.items()},
        lambda params: {name: "mix" if name == _MIX else "rest" for name in params},
    )
