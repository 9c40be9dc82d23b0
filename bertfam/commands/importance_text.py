"""Text of a run on which importance is measured and pruned models are scored."""

import argparse
from collections.abc import Callable
from typing import Any

from bertfam import session
from bertfam.analysis.importance import TextImportance
from bertfam.commands.held_out_scores import HeldOutText, Scorer, open_text
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.models.pruning import HEADS, sites
from bertfam.storage.paths import to_path
from bertfam.training.run import Run


def open_importance(args: argparse.Namespace, run: Run, vocabulary: Vocabulary, axis: str = HEADS) -> TextImportance:
    """Open the rows of the train split on which importance is measured; raise UserError if there are none, or no units."""
    if not sites(run.boxed_params, axis):
        units = "several attention heads" if axis == HEADS else "feed-forward networks"
        raise UserError(f"{args.model_dir} has no layers with {units}: there is nothing to rank")
    return TextImportance(run, _open(args, run, vocabulary, "train", args.batches).held_out)


def open_scorer(args: argparse.Namespace, run: Run, vocabulary: Vocabulary) -> Callable[[Any], dict[str, float]]:
    """Return the function that scores parameters of a run on the validation split."""
    scorer = Scorer(run, vocabulary, _open(args, run, vocabulary, "validation", None))
    return lambda params: scorer.scores(args.model_dir, params).values


def _open(args: argparse.Namespace, run: Run, vocabulary: Vocabulary, split: str, batches: int | None) -> HeldOutText:
    elsewhere = ", or name its copy by --cache_dir"
    cache = session.open_saved_cache(run, to_path(args.model_dir), args.cache_dir, otherwise=elsewhere)
    return open_text(args.model_dir, run, vocabulary, cache, split, batches)
