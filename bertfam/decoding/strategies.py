"""Decoding strategies and limits: frozen values, which are static arguments of the compiled loops."""

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from bertfam.call_arguments import check_number, check_whole_number, describe
from bertfam.errors import UserError
from bertfam.suggest import did_you_mean

EarlyStopping = Literal[False, True, "never"]


@dataclass(frozen=True)
class Greedy:
    """Strategy that takes the likeliest token at each step."""


@dataclass(frozen=True)
class Sample:
    """Strategy that draws tokens from the model's distribution, after temperature, top_k and top_p in this order.

    Attributes:
      temperature: divides the logits; less than 1 favours likely tokens.
      top_k: keep only the k likeliest tokens and ties with the last of them (Fan et al. 2018); 0: all.
      top_p: keep only the fewest tokens that together have this probability (Holtzman et al. 2020, "nucleus"); 1: all.
      seed: the same prompt, number of the text and seed give the same text, alone, in a batch and on any mesh.

    Raises:
      UserError: a value leaves no token to draw, or is no number.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_number(self.temperature, "temperature")
        check_whole_number(self.top_k, "top_k")
        check_number(self.top_p, "top_p")
        check_whole_number(self.seed, "seed")
        if not 0 < self.temperature < math.inf:
            raise UserError(
                f"temperature {self.temperature} must be above 0 and finite; for the likeliest token use the strategy greedy"
            )
        if self.top_k < 0:
            raise UserError(f"top_k {self.top_k} must be at least 1, or 0 for all tokens")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p {self.top_p} must be above 0 and at most 1, which keeps all tokens")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed {self.seed} must be at least 0 and below 2^63")


@dataclass(frozen=True)
class BeamSearch:
    """Strategy that searches for the texts of the highest score.

    The score of a text of n new tokens, its end included, is its log-probability / n ** length_penalty.

    Attributes:
      beams: number of open texts, and of ended texts, that the search keeps.
      length_penalty: above 0 favours long texts, below 0 short ones.
      early_stopping: True: stop when `beams` texts have ended. False: stop when no open text would be better than the worst of
        these if it ended now. "never": stop when no open text can become better, however long it grows.

    Raises:
      UserError: `beams` is no whole number of at least 1, `length_penalty` is not a finite number, or `early_stopping` is
        unknown.
    """

    beams: int = 5
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        check_whole_number(self.beams, "beams")
        check_number(self.length_penalty, "length_penalty")
        if self.beams < 1:
            raise UserError(f"beams {self.beams} must be at least 1")
        if not math.isfinite(self.length_penalty):
            raise UserError(f"length_penalty {self.length_penalty} must be a number; 1 ranks texts by their mean log-probability")
        if self.early_stopping not in get_args(EarlyStopping):
            raise UserError(f"early_stopping {self.early_stopping!r} is not one of False, True, 'never'")


Strategy = Greedy | Sample | BeamSearch


@dataclass(frozen=True)
class Limits:
    """Bounds on a text, under every strategy.

    Attributes:
      max_new_tokens: largest number of new tokens; longer texts are cut.
      min_new_tokens: smallest number of new tokens before a text may end.
      no_repeat_ngrams: length of n-grams that may not occur twice, those of a causal LM's prompt included; 0: no limit. There is
        no other penalty on repetition.

    Raises:
      UserError: no text can satisfy the numbers, or they are no whole numbers.
    """

    max_new_tokens: int = 40
    min_new_tokens: int = 0
    no_repeat_ngrams: int = 0

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "min_new_tokens", "no_repeat_ngrams"):
            check_whole_number(getattr(self, name), name)
        if self.max_new_tokens < 1:
            raise UserError(f"max_new_tokens {self.max_new_tokens} must be at least 1")
        if self.min_new_tokens < 0 or self.no_repeat_ngrams < 0:
            raise UserError("min_new_tokens and no_repeat_ngrams must be at least 0")
        if self.min_new_tokens > self.max_new_tokens:
            raise UserError(f"min_new_tokens {self.min_new_tokens} is more than max_new_tokens {self.max_new_tokens}; lower it")


@dataclass(frozen=True)
class Preset:
    """Strategy and `Limits.no_repeat_ngrams` of a named preset."""

    strategy: Strategy
    no_repeat_ngrams: int = 0


PRESETS = {
    "greedy": Preset(Greedy()),
    "beam": Preset(BeamSearch(beams=5), no_repeat_ngrams=2),
    "sample": Preset(Sample(top_k=50, top_p=0.95)),
}


def resolve(strategy: Strategy | str, limits: Limits) -> tuple[Strategy, Limits]:
    """Return the strategy and the limits, with those of the preset if the strategy is a preset's name.

    Raises:
      UserError: there is no such preset, or a value is no strategy or no limits.
    """
    if not isinstance(limits, Limits):
        raise UserError(f"limits must be Limits(...), such as Limits(max_new_tokens=60), not {describe(limits)}")
    if isinstance(strategy, str):
        if strategy not in PRESETS:
            names = ", ".join(map(repr, PRESETS))
            raise UserError(f"strategy {strategy!r} is not one of {names}{did_you_mean(strategy, PRESETS)}")
        preset = PRESETS[strategy]
        return preset.strategy, replace(limits, no_repeat_ngrams=limits.no_repeat_ngrams or preset.no_repeat_ngrams)
    if not isinstance(strategy, Strategy):
        raise UserError(
            f"strategy must be Greedy(), Sample(...) or BeamSearch(...), or one of the names {', '.join(map(repr, PRESETS))}, "
            f"not {describe(strategy)}"
        )
    return strategy, limits
