"""A stack of identical layers: one parameter tree [layers, ...], whichever way the loop over it is run."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import meta

from bertfam.layers.execution import Execution

AXIS = "layers"


class Stack(nn.Module):
    """Applies `length` layers one after another; layer i has the slice i of every parameter, or the one that all share.

    The layer is a module of its own, used through its pure `init` and `apply`. Keys are `fold_in(key, i)`, of
    initial values and of dropout alike, so scan and unroll agree in tree, initial values, dropout and checkpoints.

    Attributes:
      block: makes the layer: `block(parent=None)` is a module whose call takes (carry, **shared, **static) and
        returns (carry, outputs dict).
      length: number of layers.
      shared: the block's modules whose parameters all layers have in common; these are stored [1, ...].
      execution: `layers` ("scan" | "unroll") and `remat` are read here.
    """

    block: Callable[..., nn.Module]
    length: int
    shared: tuple[str, ...] = ()
    execution: Execution = Execution()

    @nn.compact
    def __call__(
        self, carry: jax.Array, shared: Mapping[str, jax.Array | None], **static: Any
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Runs the stack.

        Args:
          carry: what goes from layer to layer; its shape and dtype do not change.
          shared: arrays that every layer gets, by argument name.
          **static: Python values that every layer gets, such as `train`.

        Returns:
          the last carry, and each layer's outputs stacked on a new first axis [layers, ...].
        """
        block: Any = self.block(parent=None)
        if self.is_initializing():
            for name, value in self._initial(block, carry, shared, static).items():
                self.param(name, lambda _, value=value: value)
        params = meta.unbox(self.variables["params"])
        self._check(params)
        common = {name: jax.tree.map(lambda leaf: jnp.squeeze(leaf, 0), params[name]) for name in self.shared}
        params = {name: value for name, value in params.items() if name not in common}
        dropout_key = self.make_rng("dropout") if self.has_rng("dropout") else None

        def run_layer(carry, params, layer, common, shared):
            params = params | common
            rngs = {} if dropout_key is None else {"dropout": jax.random.fold_in(dropout_key, layer)}
            return block.apply({"params": params}, carry, **shared, **static, rngs=rngs)

        scanned = self.execution.layers == "scan"
        run_layer = _rematerialised(run_layer, self.execution.remat, scanned)
        if scanned:
            indices = jnp.arange(self.length)
            return jax.lax.scan(lambda carry, layer: run_layer(carry, *layer, common, shared), carry, (params, indices))

        outputs = []
        for layer, slice_ in enumerate(_unstacked(params, self.length)):
            carry, output = run_layer(carry, slice_, layer, common, shared)
            outputs.append(output)
        return carry, jax.tree.map(lambda *layers: jnp.stack(layers), *outputs)

    def _initial(self, block: Any, carry: Any, shared: Any, static: Any) -> dict[str, Any]:
        key = self.make_rng("params")

        def initial_layer(layer: jax.Array) -> Any:
            return block.init(jax.random.fold_in(key, layer), carry, **shared, **static)["params"]

        # A loop rather than vmap: some generators (rbg) draw other numbers when vmapped.
        stacked = jax.lax.map(initial_layer, jnp.arange(self.length))
        for name in self.shared:
            stacked[name] = jax.tree.map(lambda leaf: leaf[:1], stacked[name])
        return meta.add_axis(stacked, 0, {nn.PARTITION_NAME: AXIS})

    def _check(self, params: Any) -> None:
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            length = 1 if path[0].key in self.shared else self.length
            if leaf.shape[0] != length:
                name = jax.tree_util.keystr(path)
                raise ValueError(f"parameter {name} {leaf.shape} holds {leaf.shape[0]} layers, not {length}")


def _rematerialised(run_layer: Callable, remat: str, scanned: bool) -> Callable:
    if remat == "none":
        return run_layer
    # "full" keeps nothing but the layer's input; "dots" keeps products with weights, not those of attention.
    policy = jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims if remat == "dots" else None
    # A loop's body cannot be merged with its own recomputation; unrolled layers could, which would undo the saving.
    return jax.checkpoint(run_layer, policy=policy, prevent_cse=not scanned)


def _unstacked(params: Any, length: int) -> list[Any]:
    """The slices of every leaf. `lax.split` is transposed to one concatenation; indexing, to a sum of padded slices."""
    # [layers, ...] -> layers x [1, ...]
    split = [jax.lax.split(leaf, (1,) * length, axis=0) for leaf in jax.tree.leaves(params)]
    structure = jax.tree.structure(params)
    return [jax.tree.unflatten(structure, [jnp.squeeze(parts[layer], 0) for parts in split]) for layer in range(length)]
