"""Causal language model (Radford et al. 2018, equation 1): predicts each token from those before it."""

from dataclasses import dataclass
from typing import ClassVar

import jax
from typing_extensions import override

from bertfam.models.network import Kind
from bertfam.objectives.language_model import Collected, LanguageModelObjective
from bertfam.objectives.objective import Batch, Tree


@dataclass(frozen=True)
class CausalLm(LanguageModelObjective):
    """L = mean over tokens t of -log p(x_t | x_1 .. x_t-1), by a decoder alone; see `LanguageModelObjective` for its options."""

    network: ClassVar[Kind] = "decoder"

    @override
    def decoded(
        self, params: Tree, batch: Batch, *, key: jax.Array | None, train: bool, collect: frozenset[str] = frozenset()
    ) -> tuple[jax.Array, dict[str, Collected]]:
        hidden, collected = self._applied("decoder", params, batch, key=key, train=train, collect=collect)
        return hidden, {"decoder": collected}
