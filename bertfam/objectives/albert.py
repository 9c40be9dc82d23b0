"""ALBERT's objective: masked language model and sentence-order prediction (Lan et al. 2020, section 3.1)."""

from dataclasses import dataclass
from typing import ClassVar

from bertfam.features import SENTENCES, Sentences
from bertfam.objectives.pairs import MlmOfPairs


@dataclass(frozen=True)
class MlmSop(MlmOfPairs):
    """L = mlm * mean over masked positions of CE(vocabulary) + sop * mean over pairs of CE(in order, swapped).

    Attributes:
      model: the encoder.
      execution: how it is computed; never part of a checkpoint.
      mlm: the coefficient of the masked language model's loss.
      sop: the coefficient of the sentence-order loss.
    """

    terms: ClassVar[tuple[str, ...]] = ("mlm", "sop")
    sentences: ClassVar[Sentences] = SENTENCES["order"]

    sop: float = 1.0
