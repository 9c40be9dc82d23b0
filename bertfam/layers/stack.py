"""Stack of layers with equal parameter shapes: one tree [layers, ...], whether the loop is scanned or unrolled.

If the first layers of a network have other parameters than the rest, they form a separate stack named "first_layers" beside the
one named "layers". Optimizers and inspection number the layers by these names.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.core import meta

from bertfam.layers.execution import Execution

AXIS = "layers"
FIRST = "first_layers"
_FIRST_LAYER = "0"  # name of its parameters if they are divided
Kind = TypeVar("Kind")


class Stack(nn.Module):
    """Stack of `length` layers; layer i uses slice i of every parameter, or the parameters that all layers share.

    The layer is a separate module, used through its pure `init` and `apply`. The keys of initial values and of dropout are
    `fold_in(key, i)`, so scan and unroll agree in tree, initial values, dropout and checkpoints.

    Layers may differ in their options periodically (ModernBERT: global, local, local, global, ...). The scan then loops over
    whole periods, and the layers of an incomplete last period follow it.

    Attributes:
      block: constructor of the layer: `block(parent=None, **kind)` is a module whose call takes (carry, **shared, **static) and
        returns (carry, outputs dict).
      length: number of layers.
      shared: names of the block's modules whose parameters all layers share; these are stored [1, ...].
      execution: execution options, of which `layers` ("scan" | "unroll") and `remat` are used here.
      kinds: options of `block` that do not affect parameters; layer i has kinds[i % len(kinds)].
    """

    block: Callable[..., nn.Module]
    length: int
    shared: tuple[str, ...] = ()
    execution: Execution = Execution()
    kinds: tuple[Mapping[str, Any], ...] = ({},)

    @nn.compact
    def __call__(
        self, carry: jax.Array, shared: Mapping[str, Any], per_layer: Mapping[str, Any] | None = None, **static: Any
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Run the stack.

        Args:
          carry: array that each layer passes to the next; its shape and dtype do not change.
          shared: arrays, or trees of them, that every layer receives, by argument name.
          per_layer: arrays [layers, ...], or trees of them, of which layer i receives slice i, by argument name.
          **static: Python values that every layer receives, such as `train`.

        Returns:
          The last carry, and each layer's outputs stacked on a new first axis [layers, ...].
        """
        blocks: list[Any] = [self.block(parent=None, **kind) for kind in self.kinds]
        if self.is_initializing():
            first = jax.tree.map(lambda leaf: leaf[0], dict(per_layer or {}))
            for name, value in self._initial(blocks[0], carry, {**shared, **first}, static).items():
                self.param(name, lambda _, value=value: value)
        params = meta.unbox(self.variables["params"])
        is_divided, common = _FIRST_LAYER in params, {}
        if not is_divided:
            self._check(params)
            common = {name: jax.tree.map(lambda leaf: jnp.squeeze(leaf, 0), params[name]) for name in self.shared}
        params = {name: value for name, value in params.items() if name not in common}
        execution = self.execution.concrete
        dropout_key = self.make_rng("dropout") if self.has_rng("dropout") else None

        def run_layer(block, carry, own, layer, common, shared):
            params, arrays = own[0] | common, {**shared, **own[1]}
            rngs = {} if dropout_key is None else {"dropout": jax.random.fold_in(dropout_key, layer)}
            return block.apply({"params": params}, carry, **arrays, **static, rngs=rngs)

        own = (params, dict(per_layer or {}))  # [layers, ...]

        def run_layers(carry, slices, first, in_loop):
            """Run the layers that have these slices, from layer `first` on, which has the first kind."""
            outputs = []
            for place, slice_ in enumerate(slices):
                run = _rematerialised(partial(run_layer, blocks[place % len(blocks)]), execution.remat, in_loop)
                carry, output = run(carry, slice_, first + place, common, shared)
                outputs.append(output)
            return carry, jax.tree.map(lambda *layers: jnp.stack(layers), *outputs)

        if is_divided:
            layers = [params[str(layer)] for layer in range(self.length)]
            return run_layers(carry, list(zip(layers, _slices(own[1], self.length), strict=True)), 0, False)
        if execution.layers == "unroll":
            return run_layers(carry, _slices(own, self.length), 0, False)
        period = len(blocks)
        looped = self.length // period * period
        parts = []
        if looped:
            # [layers, ...] -> [periods, period, ...]
            periods = jax.tree.map(lambda leaf: leaf[:looped].reshape(-1, period, *leaf.shape[1:]), own)
            carry, outputs = jax.lax.scan(
                lambda carry, part: run_layers(carry, _slices(part[0], period), part[1], True),
                carry,
                (periods, jnp.arange(0, looped, period)),
            )
            # [periods, period, ...] -> [layers, ...]
            parts.append(jax.tree.map(lambda output: output.reshape(looped, *output.shape[2:]), outputs))
        if looped < self.length:
            rest = jax.tree.map(lambda leaf: leaf[looped:], own)
            carry, outputs = run_layers(carry, _slices(rest, self.length - looped), looped, False)
            parts.append(outputs)
        return carry, joined(*parts)

    def _initial(self, block: Any, carry: Any, shared: Any, static: Any) -> dict[str, Any]:
        key = self.make_rng("params")

        def initial_layer(layer: jax.Array | int) -> Any:
            return block.init(jax.random.fold_in(key, layer), carry, **shared, **static)["params"]

        def own(layer: jax.Array) -> Any:
            return {name: value for name, value in initial_layer(layer).items() if name not in self.shared}

        # A loop rather than vmap: some generators (rbg) give other numbers when vmapped.
        stacked = jax.lax.map(own, jnp.arange(self.length))
        if self.shared:  # initialized once, not for every layer, which would take 10 GB for ALBERT-xxlarge
            first = initial_layer(0)
            stacked |= {name: jax.tree.map(lambda leaf: leaf[None], first[name]) for name in self.shared}
        return meta.add_axis(stacked, 0, {nn.PARTITION_NAME: AXIS})

    def _check(self, params: Any) -> None:
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            length = 1 if path[0].key in self.shared else self.length
            if leaf.shape[0] != length:
                name = jax.tree_util.keystr(path)
                raise ValueError(f"parameter {name} {leaf.shape} holds {leaf.shape[0]} layers, not {length}")


def divided(params: Mapping[str, Any]) -> dict[str, Any]:
    """Divide the parameters of every stack into a tree for each layer: {"0": ..., "1": ...} in the place of a tree [layers, ...].

    A stack computes alike with both. Programs copy each layer's arrays out of stacked ones in every call, which takes longer
    than the products of a few short rows, so inference divides them once. On CPUs nothing is copied; other devices then hold the
    layers twice. Stacks whose layers share parameters, or with one layer, stay as they are.

    Args:
      params: parameters of a network or of several, without boxes; arrays of one process.
    """
    found = {}
    for name, value in params.items():
        if name in (AXIS, FIRST) and (length := _layers_of(value)) > 1:
            host = jax.tree.map(np.asarray, value)
            found[name] = jax.device_put({str(layer): jax.tree.map(itemgetter(layer), host) for layer in range(length)})
        else:
            found[name] = divided(value) if isinstance(value, Mapping) else value
    return found


def _layers_of(params: Any) -> int:
    """Return the number of layers of a stack's parameters, 1 if some are shared."""
    return min((leaf.shape[0] for leaf in jax.tree.leaves(params)), default=1)


def shortest_period(kinds: Sequence[Kind]) -> tuple[Kind, ...]:
    """Return the shortest period of the layers' kinds; its last repetition may be incomplete."""
    length = next(n for n in range(1, len(kinds) + 1) if all(kinds[i] == kinds[i % n] for i in range(len(kinds))))
    return tuple(kinds[:length])


def joined(*outputs: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Concatenate the outputs [layers, ...] of several stacks along their first axis."""
    return jax.tree.map(lambda *parts: jnp.concatenate(parts) if len(parts) > 1 else parts[0], *outputs)


def _rematerialised(run_layer: Callable, remat: str, scanned: bool) -> Callable:
    if remat == "none":
        return run_layer
    # "full" keeps only the layer's input; "dots" also keeps products with weights, but not those of attention.
    policy = jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims if remat == "dots" else None
    # A loop's body cannot be merged with its own recomputation; unrolled layers could, which would undo the saving.
    return jax.checkpoint(run_layer, policy=policy, prevent_cse=not scanned)


def _slices(params: Any, length: int) -> list[Any]:
    """Return the tree of each layer.

    The gradient of `lax.split` is one concatenation; that of indexing would be a sum of padded slices.
    """
    # [layers, ...] -> layers x [1, ...]
    split = [jax.lax.split(leaf, (1,) * length, axis=0) for leaf in jax.tree.leaves(params)]
    structure = jax.tree.structure(params)
    return [jax.tree.unflatten(structure, [jnp.squeeze(parts[layer], 0) for parts in split]) for layer in range(length)]
