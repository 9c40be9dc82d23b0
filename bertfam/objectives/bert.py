"""BERT's objective: masked language model and next-sentence prediction (Devlin et al. 2019, section 3.1)."""

from dataclasses import dataclass
from typing import ClassVar

from bertfam.features import SENTENCES, Sentences
from bertfam.objectives.pairs import MlmOfPairs


@dataclass(frozen=True)
class MlmNsp(MlmOfPairs):
    """L = mlm * mean over masked positions of CE(vocabulary) + nsp * mean over pairs of CE(is next, is random).

    Attributes:
      model: the encoder.
      execution: how it is computed; never part of a checkpoint.
      mlm: the coefficient of the masked language model's loss.
      nsp: the coefficient of the next-sentence loss.
    """

    terms: ClassVar[tuple[str, ...]] = ("mlm", "nsp")
    sentences: ClassVar[Sentences] = SENTENCES["next"]

    nsp: float = 1.0
