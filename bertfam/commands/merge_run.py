"""Body of `bertfam merge`."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bertfam import session
from bertfam.commands import flags
from bertfam.commands.held_out_scores import Scorer, open_text
from bertfam.errors import UserError
from bertfam.plurals import plural
from bertfam.storage.files import new_folder, write_text
from bertfam.storage.json_values import json_value
from bertfam.storage.paths import to_path
from bertfam.training.checkpoints import selection
from bertfam.training.checkpoints.weights import ModelFiles, write_params
from bertfam.training.merge.methods import Average, Method, Ties, exponential_shares, weighted_shares
from bertfam.training.merge.sources import Source, check_alike, check_base, open_source

RECORD = "merge.json"
_MERGE = "merge"  # row of the table
_DENSITY, _SCALE = 0.2, 1.0  # those of the paper where nothing is tuned

Scores = dict[str, float]
Measure = Callable[[str, Callable[[], Any]], Scores]


def merge(args: argparse.Namespace) -> int:
    """Merge and print the scores; return the exit status."""
    flags.prepare_model(args)
    sources = _open(args)
    method, settings = _method(args, sources)
    measure = _measure(args, sources[0])
    shares = method.shares if isinstance(method, Average) else [None] * len(sources)
    table, checkpoints = _Table([source.name for source in sources], quiet=args.json), []
    for source, share in zip(sources, shares, strict=True):
        scores = measure(source.folder, source.params.tree)
        table.add(source.name, share, scores)
        checkpoints.append({"checkpoint": source.name, "share": share, "scores": scores})
    params = method.merge([source.params for source in sources])
    scores = measure(args.output, lambda: params)
    table.add(_MERGE, None, scores)
    record = {"method": args.method, **settings, "checkpoints": checkpoints, "scores": scores}
    _write(args.output, ModelFiles(sources[0].folder), params, record)
    if args.json:
        print(json.dumps(json_value(record)))
    else:
        print(f"merged {plural(len(sources), 'checkpoint')} to {args.output}, a model at its step 0")
    return 0


def _open(args: argparse.Namespace) -> list[Source]:
    """Open the checkpoints; raise UserError if they do not go together."""
    sources = [open_source(name.folder, step) for name in args.model_dir for step in name.resolve()]
    if len(sources) < 2:
        folder = args.model_dir[0].folder
        steps = ", ".join(map(str, selection.complete(selection.folder(folder))))
        raise UserError(
            f"a merge is of several checkpoints: name more steps, as --model_dir={folder}@all (it has {steps}), or another "
            "--model_dir too"
        )
    check_alike(sources)
    return sources


def _method(args: argparse.Namespace, sources: Sequence[Source]) -> tuple[Method, Mapping[str, Any]]:
    """Return the method that the flags describe, with its settings; raise UserError if it does not fit the checkpoints."""
    if args.method == "ties":
        (step,) = args.base.resolve()
        base = open_source(args.base.folder, step)
        check_base(base, sources[0])
        density, scale = args.density or _DENSITY, args.scale or _SCALE
        return Ties(base.params, density, scale), {"base": base.name, "density": density, "scale": scale}
    if args.method == "exponential":
        return Average(exponential_shares(args.decay, len(sources))), {"decay": args.decay}
    weights = args.weights or (1.0,) * len(sources)
    if len(weights) != len(sources):
        names = ", ".join(source.name for source in sources)
        given = plural(len(weights), "weight")
        raise UserError(f"--weights has {given} for {plural(len(sources), 'checkpoint')} ({names}); give one for each")
    return Average(weighted_shares(weights)), {}


def _measure(args: argparse.Namespace, first: Source) -> Measure:
    """Return the function that scores a model on the held-out text of the first run; it has no scores with --skip_evaluation."""
    if args.skip_evaluation:
        return lambda folder, read: {}
    elsewhere = ", name its copy by --cache_dir, or give --skip_evaluation"
    cache = session.open_saved_cache(first.run, to_path(first.folder), args.cache_dir, otherwise=elsewhere)
    text = open_text(first.folder, first.run, first.vocabulary, cache, "validation", args.batches)
    scorer = Scorer(first.run, first.vocabulary, text)
    if not args.json:
        print(f"{plural(text.held_out.rows, 'row')} of {text.stage.length} tokens of the validation split of {cache.directory}")
    return lambda folder, read: scorer.scores(folder, read()).values


def _write(output: str, files: ModelFiles, params: Any, record: Mapping[str, Any]) -> None:
    """Write the model folder."""
    with new_folder(output) as folder:
        files.write(folder)
        write_text(folder / RECORD, json.dumps(json_value(record), indent=1) + "\n")
        write_params(folder, params)


class _Table:
    """Table of the checkpoints, their shares and scores, printed row by row."""

    def __init__(self, names: Sequence[str], *, quiet: bool) -> None:
        """Set the names of the rows before the merge; `quiet` prints nothing."""
        self._width, self._quiet = max(map(len, [*names, _MERGE])), quiet
        self._titles: list[str] | None = None

    def add(self, name: str, share: float | None, scores: Scores) -> None:
        """Print a row, and before the first one the titles."""
        if self._titles is None:
            self._titles = ["share", *scores]
            self._print("checkpoint", self._titles)
        cells = ["-" if share is None else f"{share:.4f}", *(f"{value:.4f}" for value in scores.values())]
        self._print(name, cells)

    def _print(self, name: str, cells: Sequence[str]) -> None:
        if not self._quiet:
            widths = [max(len(title), 8) for title in self._titles or ()]
            row = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
            print(f"{name:<{self._width}}  {row}", flush=True)
