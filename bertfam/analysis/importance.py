"""Importance of attention heads and neurons, by the gradients of their gates (Michel et al. 2019, section 4.1).

With a gate xi_h = 1 at each head, the importance of the head is the mean over rows x of |dL(x) / dxi_h| (equation 2), where L(x)
is the loss of a batch of this row alone. The importances of a layer are divided by their l2 norm. Neurons of feed-forward
networks have gates too (McCarley et al. 2019).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from bertfam.data.text_data import HeldOut
from bertfam.layers.gates import with_gates
from bertfam.models.pruning import HEADS, Site, masked, sites
from bertfam.training.run import Run
from bertfam.training.step import total_loss

Values = dict[Site, np.ndarray]


@dataclass(frozen=True)
class Importance:
    """Importance of the units of sites (see `bertfam.models.pruning`).

    Attributes:
      values: float64[layers, units] of each site: the mean over rows of |dL(x) / dxi|, not normalised.
      rows: number of rows.
    """

    values: Values
    rows: int

    @property
    def normalised(self) -> Values:
        """Importances of which each layer's have an l2 norm of 1, or of 0 where all are 0."""
        norms = {site: np.linalg.norm(own, axis=1, keepdims=True) for site, own in self.values.items()}
        return {site: own / np.where(norms[site] > 0, norms[site], 1.0) for site, own in self.values.items()}


class GateGradients:
    """Gradients of the gates of a model, for each row; each shape of a batch is compiled once."""

    def __init__(self, objective: Any, boxed: Any, axis: str) -> None:
        """Add a gate to each unit of a model.

        Args:
          objective: the objective whose loss is that of a row.
          boxed: shapes of its parameters, boxed with logical axis names.
          axis: logical axis of the units, `HEADS` or `NEURONS`.
        """
        # All attention backends have gradients for rows one by one, but only the reference has them on every platform.
        execution = replace(objective.execution, attention="reference", dtype="float32")
        objective = replace(objective, execution=execution)
        self.sites = sites(boxed, axis)

        def loss(gates: Any, params: Any, row: Mapping[str, jax.Array]) -> jax.Array:
            batch = {name: value[None] for name, value in row.items()}
            out = objective.loss(with_gates(params, gates), {}, {}, batch, key=None, train=False)
            return total_loss(out.terms, objective.denominators(batch), objective.coefficients)

        def sums(gates: Any, params: Any, batch: Mapping[str, jax.Array]) -> Any:
            gradients = jax.vmap(jax.grad(loss), (None, None, 0))(gates, params, batch)
            return jax.tree.map(lambda gradient: jnp.sum(jnp.abs(gradient), axis=0), gradients)

        self.loss = jax.jit(loss)
        self._sums = jax.jit(sums)

    def importance(self, params: Any, batches: Iterable[Mapping[str, np.ndarray]], rows: int, progress: str = "") -> Importance:
        """Average the absolute gradients over rows.

        Args:
          params: parameters of the objective.
          batches: features of the rows; a row without targets, which fills a batch up, has a gradient of 0.
          rows: number of rows with targets.
          progress: description of a progress bar.
        """
        params, gates = jax.device_put(params), self.gates()
        totals = {site: np.zeros(shape) for site, shape in self.sites.items()}
        for batch in tqdm(batches, progress, unit=" batches", disable=None, leave=False):
            for site, own in jax.device_get(self._sums(gates, params, batch)).items():
                totals[site] += own
        return Importance({site: total / rows for site, total in totals.items()}, rows)

    def gates(self) -> dict[Site, jax.Array]:
        """Return gates of 1: float32[layers, units] of each site."""
        return {site: jnp.ones(shape) for site, shape in self.sites.items()}


class TextImportance:
    """Importance of the units of a model on rows of a text; programs are compiled once, for any parameters of the model."""

    def __init__(self, run: Run, held_out: HeldOut) -> None:
        """Take the objective of a sized run, and the rows."""
        self.boxed = run.boxed_params
        self._objective, self._shape, self._held_out = run.objective, run.shape(len(run.stages) - 1), held_out
        self._gradients: dict[str, GateGradients] = {}

    def __call__(self, params: Any, axis: str = HEADS, progress: str = "importance") -> Importance:
        """Return the importance of the units along a logical axis, `HEADS` or `NEURONS`."""
        if axis not in self._gradients:
            self._gradients[axis] = GateGradients(self._objective, self.boxed, axis)
        return self._gradients[axis].importance(params, self._batches(), self._held_out.rows, progress)

    def _batches(self) -> Iterator[dict[str, np.ndarray]]:
        names, own = self._objective.features(self._shape), self._held_out
        for step in range(own.steps):
            rows = own.source.rows(step, 0, own.batch_size)
            yield {name: rows[name] for name in names}


def masks_by_importance(
    importance: Callable[[Any], Importance], boxed: Any, params: Any, counts: Sequence[int]
) -> Iterator[Values]:
    """Yield masks of more and more heads, bool[layers, heads] of each site: the least important ones of the whole model.

    The importance is measured anew with each mask, and heads that are masked stay masked.

    Args:
      importance: returns the importance of the heads of parameters.
      boxed: shapes of the parameters, boxed with logical axis names.
      params: the parameters.
      counts: number of heads of each mask, in ascending order.
    """
    removed = {site: np.zeros(shape, bool) for site, shape in sites(boxed, HEADS).items()}
    for count in counts:
        if count > sum(own.sum() for own in removed.values()):
            values = importance(masked(boxed, params, removed, HEADS)).normalised
            removed = least_important({site: np.where(removed[site], -1.0, own) for site, own in values.items()}, count)
        yield removed


def random_masks(boxed: Any, counts: Sequence[int], seed: int = 0) -> Iterator[Values]:
    """Yield masks of more and more heads, drawn at random; see `masks_by_importance`."""
    generator = np.random.default_rng(seed)
    order = {site: generator.random(shape) for site, shape in sites(boxed, HEADS).items()}
    yield from (least_important(order, count) for count in counts)


def least_important(values: Mapping[Site, np.ndarray], count: int) -> Values:
    """Return the `count` units of the least importance in all sites together: bool[layers, units] of each site."""
    flat = np.concatenate([own.ravel() for own in values.values()])
    chosen = np.zeros(flat.shape, bool)
    chosen[np.argsort(flat, kind="stable")[:count]] = True
    parts = np.split(chosen, np.cumsum([own.size for own in values.values()])[:-1])
    return {site: part.reshape(own.shape) for (site, own), part in zip(values.items(), parts, strict=True)}


def most_important(values: Mapping[Site, np.ndarray], count: int) -> Values:
    """Return the `count` units of the greatest importance in each layer, in their order: int64[layers, count] of each site."""
    return {site: np.sort(np.argsort(-own, axis=1, kind="stable")[:, :count], axis=1) for site, own in values.items()}
