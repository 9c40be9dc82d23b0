"""Scores of the texts that could fill a blank, and the likeliest tokens there."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bertfam.analysis.cloze.calibration import calibrate
from bertfam.analysis.cloze.items import Item
from bertfam.decoding.hidden_tokens import HiddenTokens, TokenPredictor, predict
from bertfam.errors import UserError
from bertfam.evaluation.minimal_pairs import TIE

TOP_K = 10


class Filler(NamedTuple):
    """Text with its blank filled.

    Attributes:
      tokens: int32[length], all tokens with the control tokens around them.
      places: int64[n], the tokens of the filler.
      is_known: False if one of these is the unknown token.
    """

    tokens: np.ndarray
    places: np.ndarray
    is_known: bool


def fill_blank(predictor: TokenPredictor, item: Item, filler: str) -> Filler:
    """Encode an item with a filler in its blank.

    Raises:
      UserError: the filler has no token.
    """
    encoding = predictor.vocabulary.encode(f"{item.before}{filler}{item.behind}")
    starts, ends = encoding.offsets.T
    first, end = len(item.before), len(item.before) + len(filler)
    places = np.flatnonzero((starts < end) & (ends > first) & (ends > starts))
    if not len(places):
        raise UserError(f"{item.where}: {filler!r} has no token in the model's vocabulary; take it out")
    tokens = np.array([*predictor.before, *encoding.ids, *predictor.behind], np.int32)
    is_known = not (encoding.ids[places] == predictor.vocabulary.token_ids.unk).any()
    return Filler(tokens, places + len(predictor.before), is_known)


def hidden_filler(predictor: TokenPredictor, filler: Filler) -> HiddenTokens:
    """Return the row in which the tokens of a filler are predicted, all of them hidden at once.

    A model that does not see what is behind them predicts that too.
    """
    places = filler.places if predictor.sees_behind else np.arange(filler.places[0], len(filler.tokens))
    return HiddenTokens(filler.tokens, places, len(places))


def hidden_token(predictor: TokenPredictor, filler: Filler) -> HiddenTokens:
    """Return the row in which a single token is hidden in place of a filler."""
    first, last = int(filler.places[0]), int(filler.places[-1])
    behind = filler.tokens[last + 1 :] if predictor.sees_behind else filler.tokens[:0]
    return HiddenTokens(np.append(filler.tokens[: first + 1], behind), np.array([first]), 1)


@dataclass(frozen=True)
class BlankScores:
    """Scores of the fillers of one blank, first of the answers, then of the distractors.

    Attributes:
      item: the item.
      probabilities: float64[fillers], product of the probabilities of a filler's tokens; 0 if the vocabulary lacks one.
      ranks: int64[fillers], greatest rank of its tokens, 1 for the likeliest; the size of the vocabulary if it lacks one.
      scores: float64[fillers], by which fillers are compared: the mean log-probability of their tokens, or, of a model that
        does not see what is behind the blank, the sum over them and all that is behind them; -inf if the vocabulary lacks one.
      best: the likeliest single tokens at the blank, with their probabilities.
      is_right: True if the likeliest of these is an accepted answer; None if no answer is a single token.
    """

    item: Item
    probabilities: np.ndarray
    ranks: np.ndarray
    scores: np.ndarray
    best: list[tuple[str, float]]
    is_right: bool | None

    @property
    def rank(self) -> int:
        """Least rank of an accepted answer."""
        return int(self.ranks[: len(self.item.answers)].min())

    @property
    def probability(self) -> float:
        """Greatest probability of an accepted answer."""
        return float(self.probabilities[: len(self.item.answers)].max())

    @property
    def choice(self) -> float | None:
        """1 if the best filler is an accepted answer, 0.5 for a tie with a distractor, else 0; None without distractors."""
        if not self.item.distractors:
            return None
        answer, distractor = (part.max() for part in np.split(self.scores, [len(self.item.answers)]))
        return TIE if answer == distractor else float(answer > distractor)


def score_blanks(
    predictor: TokenPredictor, items: Sequence[Item], *, batch_size: int, progress: str | None = None
) -> list[BlankScores]:
    """Score the fillers of items, without those that are longer than the model reads.

    Raises:
      UserError: a filler has no token, or the model's logits are not numbers.
    """
    filled = {item: [fill_blank(predictor, item, one) for one in item.answers + item.distractors] for item in items}
    longest = predictor.max_length
    if longest is not None:
        filled = {item: own for item, own in filled.items() if max(len(one.tokens) for one in own) <= longest}
    fillers = [one for own in filled.values() for one in own]
    rows = [hidden_filler(predictor, one) for one in fillers]
    found = predict(predictor, rows, batch_size=batch_size, progress=progress)
    if np.isnan(found.log_probabilities).any():
        raise UserError("the model's logits are not numbers, so it fills no blank: did its training diverge?")
    parts = zip(fillers, found.log_probabilities, found.ranks, strict=True)
    values = np.array([_values(predictor, *part) for part in parts]).reshape(-1, 3)
    top_k = min(TOP_K, predictor.vocabulary.size)
    single = predict(predictor, [hidden_token(predictor, own[0]) for own in filled.values()], top_k=top_k, batch_size=batch_size)
    results, first = [], 0
    for place, (item, own) in enumerate(filled.items()):
        probabilities, ranks, scores = values[first : first + len(own)].T
        first += len(own)
        best = single.best[place, 0].tolist()
        likely = zip(predictor.vocabulary.pieces(best), np.exp(single.best_log_probabilities[place, 0]).tolist(), strict=True)
        accepted = {int(one.tokens[one.places[0]]) for one in own[: len(item.answers)] if len(one.places) == 1 and one.is_known}
        is_right = best[0] in accepted if accepted else None
        results.append(BlankScores(item, probabilities, ranks.astype(np.int64), scores, list(likely), is_right))
    return results


def _values(predictor: TokenPredictor, filler: Filler, logs: np.ndarray, ranks: np.ndarray) -> tuple[float, int, float]:
    """Return the probability, the rank and the score of a filler; see `BlankScores`."""
    if not filler.is_known:
        return 0.0, predictor.vocabulary.size, -np.inf
    count = len(filler.places)
    own = logs[:count]
    return float(np.exp(own.sum())), int(ranks[:count].max()), float(own.mean() if predictor.sees_behind else logs.sum())


def summarize(scores: Sequence[BlankScores]) -> dict[str, Any]:
    """Return the means over items as JSON values.

    Returns:
      "items"; "rank", the median of the ranks; "probability", a mean; "top1" and "top10", shares of the items whose answer has
      that rank or a better one; "choice", the mean choice of the items with distractors, and "chance", that of random choices;
      both None without any; "calibration" of the likeliest single tokens, over the items with an answer that is one.
    """
    ranks = np.array([one.rank for one in scores])
    choices = [(one.choice, one.item) for one in scores if one.choice is not None]
    chances = [len(item.answers) / (len(item.answers) + len(item.distractors)) for _, item in choices]
    return {
        "items": len(scores),
        "rank": float(np.median(ranks)),
        "probability": float(np.mean([one.probability for one in scores])),
        "top1": float(np.mean(ranks <= 1)),
        "top10": float(np.mean(ranks <= 10)),
        "choice": float(np.mean([choice for choice, _ in choices])) if choices else None,
        "chance": float(np.mean(chances)) if choices else None,
        "calibration": calibration_of(scores),
    }


def calibration_of(scores: Sequence[BlankScores]) -> dict[str, Any]:
    """Return the calibration of the likeliest single tokens, as JSON values."""
    judged = [(one.best[0][1], one.is_right) for one in scores if one.is_right is not None]
    confidences, is_right = (np.array([pair[part] for pair in judged], np.float64) for part in (0, 1))
    error, bins = calibrate(confidences, is_right)
    return {"items": len(judged), "error": error, "bins": [one._asdict() for one in bins]}
