"""Phases of a run: the objectives of its stages, the union of their parameters, and the part of it that each stage trains."""

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import jax
from flax import linen as nn

from bertfam.errors import UserError
from bertfam.features import RowShape
from bertfam.objectives.frozen import Frozen
from bertfam.objectives.objective import Objective, Tree

# An objective with the shape of the rows that its parameters are made for.
Shaped = tuple[Objective, RowShape]


@dataclass(frozen=True)
class Phase:
    """Objective of a stage and the parameters that it trains.

    Attributes:
      objective: the objective.
      parts: parts of the run's parameters that the objective uses; None: all.
      frozen: parameters that no stage of the run trains, and that have no moments.
      idle: further parameters that this stage leaves as they are, with their moments.
    """

    objective: Objective
    parts: tuple[str, ...] | None = None
    frozen: Frozen = Frozen()
    idle: Frozen = Frozen()

    @classmethod
    def of(cls, objective: Objective) -> "Phase":
        """Return the phase of a run that trains one objective."""
        return cls(objective, frozen=objective.frozen)

    def used(self, params: Tree) -> Tree:
        """Return the parameters that the objective uses, of all those of the run."""
        return params if self.parts is None else {name: params[name] for name in self.parts}


def initial_values(shaped: Sequence[Shaped], key: jax.Array) -> tuple[Tree, Tree, Tree]:
    """Initialise (params, carry, aux) of several objectives; params are the union, boxed with logical axis names.

    A part that several objectives have starts as the first of them makes it.

    Raises:
      UserError: two objectives have other parameters in a part, or the carry or the teachers of one are not those of the first.
    """
    params, carry, aux = shaped[0][0].init(key, shaped[0][1])
    for objective, shape in shaped[1:]:
        own, own_carry, own_aux = objective.init(key, shape)
        name = type(objective).__name__
        _check_shared(name, params, own)
        if str(jax.tree.structure(own_carry)) != str(jax.tree.structure(carry)):
            raise UserError(f"{name} of a stage has another memory than Run.objective: give both the same, or none")
        if missing := own_aux.keys() - aux.keys():
            raise UserError(f"{name} of a stage reads a {min(missing)}, which Run.objective has not: name it there")
        params = own | params
    return params, carry, aux


def _check_shared(name: str, params: Tree, own: Tree) -> None:
    """Raise UserError if two objectives have parts of one name with other parameters."""
    ours, theirs = (_shapes({part: tree[part] for part in params.keys() & own.keys()}) for tree in (params, own))
    differing = sorted(path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path))
    if not differing:
        return
    there, here = (f"the shape {shapes[differing[0]]}" if differing[0] in shapes else "none" for shapes in (theirs, ours))
    raise UserError(
        f"the models of {name} of a stage and of Run.objective differ: {differing[0]} has {there} there and {here} here; stages "
        "share one set of parameters, so their models may differ only in what has none, such as rotary bases, windows and dropout"
    )


def _shapes(params: Tree) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(nn.meta.unbox(params))
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves}


# Tracing takes tenths of a second, and a process makes several equal runs: of a folder, sized for a vocabulary, or for a plan.
@functools.lru_cache(maxsize=16)
def initial_shapes(shaped: tuple[Shaped, ...]) -> tuple[Tree, Tree, Tree]:
    """Return the shapes of `initial_values`."""
    shapes: tuple[Tree, Tree, Tree] = jax.eval_shape(lambda key: initial_values(shaped, key), jax.random.key(0))
    return shapes


def phases_of(shaped: Sequence[Shaped], frozen: Sequence[Frozen], union: Collection[str]) -> tuple[Phase, ...]:
    """Return the phase of each stage.

    Args:
      shaped: objective of each stage.
      frozen: parameters that each stage freezes.
      union: parts of the parameters of the run.

    Raises:
      UserError: a stage trains nothing, or freezes a part that its objective has not.
    """
    parts = [tuple(initial_shapes((own,))[0]) for own in shaped]
    left = [
        _untrained(f"Run.stages[{index}]", objective, own, stage.parts, union)
        for index, ((objective, _), own, stage) in enumerate(zip(shaped, parts, frozen, strict=True))
    ]
    # Layers of a part that all stages freeze have no moments only if all freeze the same ones.
    common = (
        left[0]
        if len(set(left)) == 1
        else Frozen({name: None for name in union if all(f.parts.get(name, 0) is None for f in left)})
    )
    return tuple(
        Phase(
            objective,
            None if set(own) == set(union) else own,
            common,
            Frozen({name: layers for name, layers in stage.parts.items() if name not in common.parts}),
        )
        for (objective, _), own, stage in zip(shaped, parts, left, strict=True)
    )


def _untrained(
    where: str, objective: Objective, parts: Collection[str], frozen: Mapping[str, int | None], union: Collection[str]
) -> Frozen:
    """Return all parameters of a run that a stage leaves as they are: those that it freezes, and those that it does not use."""
    if unknown := sorted(frozen.keys() - set(parts)):
        raise UserError(
            f"{where}.frozen names {unknown[0]}, which {type(objective).__name__} has not: it has {', '.join(sorted(parts))}"
        )
    if all(frozen.get(name, 0) is None for name in parts):
        raise UserError(
            f"{where}.frozen names all parts, {', '.join(sorted(parts))}, and nothing would be trained; leave one out"
        )
    return Frozen({name: None for name in union if name not in parts} | dict(objective.frozen.parts) | dict(frozen))
