"""Linear probe: a linear layer on hidden states, in the place of a family's head."""

from dataclasses import dataclass
from typing import Literal

from bertfam.errors import UserError
from bertfam.layers.execution import Execution
from bertfam.layers.heads.classification import Classifier, OutputLayer, Pooling
from bertfam.layers.heads.scalar_mix import ScalarMix
from bertfam.models.mapping import CHOICE_CLASSIFIER, CLASSIFIER
from bertfam.objectives.fine_tuning.heads import Head

PROBE = "probe"


@dataclass(frozen=True)
class LinearProbe:
    """Linear layer without dropout on hidden states of the encoder.

    Attributes:
      layer: Layer whose hidden states it reads: 0, the embeddings, to the number of layers, or -1, the last; "mix": the learned
        mix of all (Peters et al. 2018, equation 1).
      pooling: Hidden state of a text: the mean of its tokens', or that of [CLS].
    """

    layer: int | Literal["mix"] = -1
    pooling: Pooling = "mean"

    def __post_init__(self) -> None:
        if self.pooling not in ("mean", "cls"):
            raise UserError(f'LinearProbe.pooling is {self.pooling!r}: it must be "mean" or "cls"')
        if self.layer != "mix" and not isinstance(self.layer, int):
            raise UserError(f'LinearProbe.layer is {self.layer!r}: it must be a whole number or "mix"')

    def classifier(self, head: Head, execution: Execution) -> Classifier:
        """Return the layers from the hidden states to the outputs of a head."""
        output = OutputLayer(head.outputs if head.choices == 1 else 1, dropout_rate=0.0, execution=execution)
        pooling = self.pooling if head.part in (CLASSIFIER, CHOICE_CLASSIFIER) else None
        if self.layer == "mix":
            return Classifier(pooling, output, mix=ScalarMix())
        return Classifier(pooling, output, layer=self.layer)
