"""How the next token is chosen, and what bounds a text: frozen values, each a part of what is compiled."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from bertfam.errors import UserError

EarlyStopping = Literal[False, True, "never"]


@dataclass(frozen=True)
class Greedy:
    """The likeliest token, each time."""


@dataclass(frozen=True)
class Sample:
    """A token drawn from the model's distribution, made sharper and cut by these in their order.

    Attributes:
      temperature: divides the logits; less than 1 favours the likely ones.
      top_k: only the k likeliest tokens, and what is as likely as the last of them (Fan et al. 2018); 0: all.
      top_p: only the fewest tokens that have this probability together (Holtzman et al. 2020, "nucleus"); 1: all.
      seed: the same prompt, number and seed give the same text, alone, in a batch and on any mesh.

    Raises:
      UserError: for a value that leaves nothing to draw from.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise UserError(
                f"temperature {self.temperature} must be above 0 and finite; for the likeliest token take the strategy greedy"
            )
        if self.top_k < 0:
            raise UserError(f"top_k {self.top_k} must be at least 1, or 0 for all tokens")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p {self.top_p} must be above 0 and at most 1, which takes all tokens")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed {self.seed} must be at least 0 and below 2^63")


@dataclass(frozen=True)
class BeamSearch:
    """The texts of the highest score that a search with this many open texts finds.

    The score of a text of n new tokens, its end included, is its log-probability / n ** length_penalty.

    Attributes:
      beams: texts that are kept open, and that are kept when they have ended.
      length_penalty: above 0 favours long texts, below 0 short ones.
      early_stopping: True: a search ends with `beams` texts that have ended. False: when no open text would be better than the
        worst of these if it ended now. "never": when none can become better, however long it gets.

    Raises:
      UserError: for less than one beam, a `length_penalty` that is no number, or an unknown `early_stopping`.
    """

    beams: int = 5
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise UserError(f"beams {self.beams} must be at least 1")
        if not math.isfinite(self.length_penalty):
            raise UserError(f"length_penalty {self.length_penalty} must be a number; 1 ranks texts by their mean log-probability")
        if self.early_stopping not in get_args(EarlyStopping):
            raise UserError(f"early_stopping {self.early_stopping!r} is not one of False, True, 'never'")


Strategy = Greedy | Sample | BeamSearch


@dataclass(frozen=True)
class Limits:
    """What a text must keep to, whatever the strategy.

    Attributes:
      max_new_tokens: where it is cut.
      min_new_tokens: it does not end before it has so many.
      no_repeat_ngrams: no run of so many tokens stands twice, those of a decoder's prompt included; 0: any may. Nothing else is
        done against repetition.

    Raises:
      UserError: for numbers that no text can keep to.
    """

    max_new_tokens: int = 40
    min_new_tokens: int = 0
    no_repeat_ngrams: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UserError(f"max_new_tokens {self.max_new_tokens} must be at least 1")
        if self.min_new_tokens < 0 or self.no_repeat_ngrams < 0:
            raise UserError("min_new_tokens and no_repeat_ngrams must be at least 0")
        if self.min_new_tokens > self.max_new_tokens:
            raise UserError(f"min_new_tokens {self.min_new_tokens} is more than max_new_tokens {self.max_new_tokens}; lower it")


@dataclass(frozen=True)
class Preset:
    """A strategy under a name, and the n-grams that go with it."""

    strategy: Strategy
    no_repeat_ngrams: int = 0


PRESETS = {
    "greedy": Preset(Greedy()),
    "beam": Preset(BeamSearch(beams=5), no_repeat_ngrams=2),
    "sample": Preset(Sample(top_k=50, top_p=0.95)),
}
