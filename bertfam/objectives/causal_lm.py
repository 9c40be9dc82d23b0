"""Causal language model (Radford et al. 2018, equation 1): predicts each token from those before it."""

from dataclasses import dataclass
from typing import ClassVar

import jax
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.objectives.language_model import Collected, LanguageModelObjective
from bertfam.objectives.objective import Batch, Tree


@dataclass(frozen=True)
class CausalLm(LanguageModelObjective):
    """L = mean over tokens t of -log p(x_t | x_1 .. x_t-1), by a decoder alone; see `LanguageModelObjective` for its options."""

    network: ClassVar[str] = "decoder"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model.has_encoder:
            raise UserError(
                f"CausalLm trains a decoder alone, and {type(self.model).__name__} has an encoder: use @SequenceToSequence(), "
                "as objectives/t5_random_spans.gin and objectives/bart.gin do"
            )

    @override
    def decoded(
        self, params: Tree, batch: Batch, *, key: jax.Array | None, train: bool, collect: frozenset[str] = frozenset()
    ) -> tuple[jax.Array, dict[str, Collected]]:
        hidden, collected = self._applied("decoder", params, batch, key=key, train=train, collect=collect)
        return hidden, {"decoder": collected}
