"""A stack of layers that are alike in their parameters: one tree [layers, ...], whichever way the loop over it is run.

Where the first layers of a network have other parameters than the rest, they are a stack of their own, which lies beside the
one called "layers" under the name "first_layers": so optimizers and inspection know how the layers are numbered.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import meta

from bertfam.layers.execution import Execution

AXIS = "layers"
FIRST = "first_layers"


class Stack(nn.Module):
    """Applies `length` layers one after another; layer i has the slice i of every parameter, or the one that all share.

    The layer is a module of its own, used through its pure `init` and `apply`. Keys are `fold_in(key, i)`, of
    initial values and of dropout alike, so scan and unroll agree in tree, initial values, dropout and checkpoints.

    Layers may differ in their options, in turn (ModernBERT: global, local, local, global, ...): the loop of "scan" then goes
    over whole periods, and what is left over of the last one comes after it.

    Attributes:
      block: makes the layer: `block(parent=None, **kind)` is a module whose call takes (carry, **shared, **static) and
        returns (carry, outputs dict).
      length: number of layers.
      shared: the block's modules whose parameters all layers have in common; these are stored [1, ...].
      execution: `layers` ("scan" | "unroll") and `remat` are read here.
      kinds: options of `block`, none of which makes a difference to parameters: layer i has those of kinds[i % len(kinds)].
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
          carry: what goes from layer to layer; its shape and dtype do not change.
          shared: arrays, or trees of them, that every layer gets, by argument name.
          per_layer: arrays [layers, ...], or trees of them, of which layer i gets the slice i, by argument name.
          **static: Python values that every layer gets, such as `train`.

        Returns:
          the last carry, and each layer's outputs stacked on a new first axis [layers, ...].
        """
        blocks: list[Any] = [self.block(parent=None, **kind) for kind in self.kinds]
        if self.is_initializing():
            first = jax.tree.map(lambda leaf: leaf[0], dict(per_layer or {}))
            for name, value in self._initial(blocks[0], carry, {**shared, **first}, static).items():
                self.param(name, lambda _, value=value: value)
        params = meta.unbox(self.variables["params"])
        self._check(params)
        common = {name: jax.tree.map(lambda leaf: jnp.squeeze(leaf, 0), params[name]) for name in self.shared}
        params = {name: value for name, value in params.items() if name not in common}
        dropout_key = self.make_rng("dropout") if self.has_rng("dropout") else None

        def run_layer(block, carry, own, layer, common, shared):
            params, arrays = own[0] | common, {**shared, **own[1]}
            rngs = {} if dropout_key is None else {"dropout": jax.random.fold_in(dropout_key, layer)}
            return block.apply({"params": params}, carry, **arrays, **static, rngs=rngs)

        own = (params, dict(per_layer or {}))  # [layers, ...]

        def run_layers(carry, own, first, count, in_loop):
            """The layers `first` and on, of which the first is of the first kind."""
            outputs = []
            for place, slice_ in enumerate(_unstacked(own, count)):
                run = _rematerialised(partial(run_layer, blocks[place % len(blocks)]), self.execution.remat, in_loop)
                carry, output = run(carry, slice_, first + place, common, shared)
                outputs.append(output)
            return carry, jax.tree.map(lambda *layers: jnp.stack(layers), *outputs)

        if self.execution.layers == "unroll":
            return run_layers(carry, own, 0, self.length, False)
        period = len(blocks)
        looped = self.length // period * period
        parts = []
        if looped:
            # [layers, ...] -> [periods, period, ...]
            periods = jax.tree.map(lambda leaf: leaf[:looped].reshape(-1, period, *leaf.shape[1:]), own)
            carry, outputs = jax.lax.scan(
                lambda carry, part: run_layers(carry, *part, period, True), carry, (periods, jnp.arange(0, looped, period))
            )
            # [periods, period, ...] -> [layers, ...]
            parts.append(jax.tree.map(lambda output: output.reshape(looped, *output.shape[2:]), outputs))
        if looped < self.length:
            rest = jax.tree.map(lambda leaf: leaf[looped:], own)
            carry, outputs = run_layers(carry, rest, looped, self.length - looped, False)
            parts.append(outputs)
        return carry, joined(*parts)

    def _initial(self, block: Any, carry: Any, shared: Any, static: Any) -> dict[str, Any]:
        key = self.make_rng("params")

        def initial_layer(layer: jax.Array | int) -> Any:
            return block.init(jax.random.fold_in(key, layer), carry, **shared, **static)["params"]

        def own(layer: jax.Array) -> Any:
            return {name: value for name, value in initial_layer(layer).items() if name not in self.shared}

        # A loop rather than vmap: some generators (rbg) draw other numbers when vmapped.
        stacked = jax.lax.map(own, jnp.arange(self.length))
        if self.shared:  # drawn once, not for every layer: those of ALBERT-xxlarge are 10 GB
            first = initial_layer(0)
            stacked |= {name: jax.tree.map(lambda leaf: leaf[None], first[name]) for name in self.shared}
        return meta.add_axis(stacked, 0, {nn.PARTITION_NAME: AXIS})

    def _check(self, params: Any) -> None:
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            length = 1 if path[0].key in self.shared else self.length
            if leaf.shape[0] != length:
                name = jax.tree_util.keystr(path)
                raise ValueError(f"parameter {name} {leaf.shape} holds {leaf.shape[0]} layers, not {length}")


def joined(*outputs: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Concatenate the outputs of stacks: [layers, ...] each -> [layers of all, ...]."""
    return jax.tree.map(lambda *parts: jnp.concatenate(parts) if len(parts) > 1 else parts[0], *outputs)


def _rematerialised(run_layer: Callable, remat: str, scanned: bool) -> Callable:
    if remat == "none":
        return run_layer
    # "full" keeps nothing but the layer's input; "dots" keeps products with weights, not those of attention.
    policy = jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims if remat == "dots" else None
    # A loop's body cannot be merged with its own recomputation; unrolled layers could, which would undo the saving.
    return jax.checkpoint(run_layer, policy=policy, prevent_cse=not scanned)


def _unstacked(params: Any, length: int) -> list[Any]:
    """Return the slices of every leaf. `lax.split` is transposed to one concatenation; indexing, to a sum of padded slices."""
    # [layers, ...] -> layers x [1, ...]
    split = [jax.lax.split(leaf, (1,) * length, axis=0) for leaf in jax.tree.leaves(params)]
    structure = jax.tree.structure(params)
    return [jax.tree.unflatten(structure, [jnp.squeeze(parts[layer], 0) for parts in split]) for layer in range(length)]
