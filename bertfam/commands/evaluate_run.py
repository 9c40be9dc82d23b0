"""Body of `bertfam evaluate`: scores on held-out text, on minimal pairs and on seqio tasks."""

import argparse
import json
import shlex
from dataclasses import dataclass
from pathlib import Path

import jax

from bertfam import session
from bertfam.api import LanguageModel, load_networks
from bertfam.commands import embed, flags
from bertfam.commands.held_out_scores import HeldOutText, Scorer, open_text
from bertfam.data.seqio_tasks.corpus import fill_registry
from bertfam.data.token_cache.cache import TokenCache
from bertfam.embedding.embedder import DOCUMENT_PROMPTS, QUERY_PROMPTS
from bertfam.errors import UserError, warn
from bertfam.evaluation.baselines import baselines, training_counts, word_scores
from bertfam.evaluation.minimal_pairs import CHANCE, PairCounts, by_phenomenon, compare, read_pairs
from bertfam.evaluation.perplexity import lacks_words, perplexities
from bertfam.evaluation.retrieval import Similarity, evaluate_retrieval, read_collection
from bertfam.evaluation.sentence_scores import scorer
from bertfam.interop.folders import is_huggingface
from bertfam.plurals import plural
from bertfam.sharding.mesh import MeshShape
from bertfam.storage.json_values import json_value
from bertfam.storage.paths import to_path
from bertfam.training.model_dir import TrainedModel, open_model, read_run
from bertfam.training.trained_networks import find_step
from bertfam.training.warm_start.imported_model import read_model


@dataclass(frozen=True)
class Evaluation:
    """Trained model, and the held-out text to measure it on.

    Attributes:
      model: the model of a checkpoint, or of a Hugging Face folder.
      step: the step of the checkpoint; a Hugging Face folder has none.
      text: the text.
    """

    model: TrainedModel
    step: int | None
    text: HeldOutText


def held_out_text(args: argparse.Namespace, split: str) -> int:
    """Score a split of a token cache and print; return the exit status."""
    evaluation = _open(args, split)
    model, text = evaluation.model, evaluation.text
    scores, targets, corpora = Scorer(model.run, model.vocabulary, text).scores(args.model_dir, model.params)
    run, cache, held_out, stage = text.run, text.cache, text.held_out, text.stage
    scores |= perplexities(scores, run.data, cache, split)
    for name, values in corpora.items():
        values |= perplexities(values, run.data, cache, split, name)
    if lacks_words(run.data, cache, split):
        warn(
            [f"{cache.directory} has no counts of words and bytes, which perplexities per word and byte require; build it again"]
        )
    if args.baselines:
        tokens = model.vocabulary.token_ids
        counts = training_counts(run.data, cache, tokens, stage.length, stage.batch_size)
        of_words = word_scores(run.data, counts, tokens)
        scores |= baselines(held_out.source, held_out.steps, held_out.batch_size, counts, of_words)
    if args.json:
        by_corpus = {"corpora": corpora} if corpora else {}
        result = {"step": evaluation.step, "split": split, "rows": held_out.rows, "targets": targets, **scores, **by_corpus}
        print(json.dumps(json_value(result)))
        return 0
    print(f"{_at(evaluation.step)}{args.model_dir} on the {split} split of {cache.directory}")
    batches = plural(held_out.steps, "batch", "batches")
    print(f"{plural(held_out.rows, 'row')} of {stage.length} tokens in {batches} of {held_out.batch_size:,}")
    print("targets: " + ", ".join(f"{count:,} {name}" for name, count in targets.items()))
    for name, value in scores.items():
        print(f"  {name:<24} {value:.4f}" if value < 1e6 else f"  {name:<24} {value:.4g}")
    for name, values in corpora.items():
        rows = held_out.corpora[name].rows
        print(f"{name} ({plural(rows, 'row')}): " + "  ".join(f"{metric} {value:.4g}" for metric, value in values.items()))
    return 0


def _open(args: argparse.Namespace, split: str) -> Evaluation:
    """Open the run, the token cache, the model and the batches; raises UserError if they do not go together."""
    flags.prepare_model(args)
    if is_huggingface(args.model_dir):
        model, step = _open_imported(args), None
        run, cache = model.run, TokenCache(args.cache_dir)
    else:
        run = read_run(args.model_dir)
        elsewhere = ", or name its copy by --cache_dir"
        cache = session.open_saved_cache(run, to_path(args.model_dir), args.cache_dir, otherwise=elsewhere)
        model = open_model(args.model_dir, flags.step_of(args), average=args.average)
        step, run = model.step, run.at(model.step)
    return Evaluation(model, step, open_text(args.model_dir, run, model.vocabulary, cache, split, args.batches))


def _open_imported(args: argparse.Namespace) -> TrainedModel:
    """Read a Hugging Face folder; its rows, noise and metrics are those with which its family's objective would train it."""
    for flag, why in (("step", "has no checkpoints"), ("average", "has no moving average")):
        if getattr(args, flag):
            raise UserError(f"--{flag}: {args.model_dir} is a Hugging Face folder and {why}; leave the flag out")
    if args.cache_dir is None:
        raise UserError(
            f"{args.model_dir} is a Hugging Face folder and has no token cache: give --cache_dir=DIR, which `bertfam cache "
            f"--vocab={shlex.quote(str(args.model_dir))}` builds"
        )
    imported = read_model(args.model_dir, f"--model_dir={args.model_dir}", args.module_import)
    return TrainedModel(imported.run.fitted(imported.vocabulary), imported.vocabulary, 0, imported.params)


def task(args: argparse.Namespace, split: str) -> int:
    """Evaluate a seqio task and print; return the exit status."""
    if args.module_import:  # a module may register the family of the model
        fill_registry(args.module_import)
    step = find_step(args.model_dir, flags.step_of(args), average=args.average)
    networks = load_networks(args.model_dir, step=step, average=args.average).values()
    model = next((network for network in networks if isinstance(network, LanguageModel)), None)
    if model is None:
        raise UserError(f"{args.model_dir} holds an encoder, but --task requires a causal LM or an encoder-decoder")

    # These import seqio, and with it TensorFlow.
    fill_registry(args.module_import)
    from bertfam.evaluation.seqio_tasks import evaluate, format_results

    results = evaluate(
        model,
        args.task,
        split,
        examples=args.limit,
        max_new_tokens=args.max_new_tokens,
        batch_size=args.batch_size or 32,
        mesh=MeshShape().build() if len(jax.devices()) > 1 else None,
    )
    if args.json:
        print(json.dumps(json_value({"step": step, "split": split, "tasks": results})))
    else:
        source = f"{_at(step)}{args.model_dir}"
        print(f"{source} on the {split} split of --task={args.task}", *format_results(results), sep="\n")
    return 0


def minimal_pairs(args: argparse.Namespace) -> int:
    """Compare the sentences of minimal pairs and print; return the exit status."""
    files = read_pairs(Path(args.blimp), args.limit)
    flags.prepare_model(args)
    step = find_step(args.model_dir, flags.step_of(args), average=args.average)
    scores = scorer(load_networks(args.model_dir, step=step, average=args.average), within_word=args.within_word)
    if not args.json:
        print(f"{_at(step)}{args.model_dir} on the minimal pairs of {args.blimp}, by {scores.description}")
    width = max(24, *map(len, files))
    results = {}
    for name, pairs in files.items():
        results[name] = compare(pairs, scores.score)
        if not args.json:
            print(f"  {name:<{width}} {results[name].accuracy:.4f}", flush=True)
    total = sum(results.values(), PairCounts())
    phenomena = by_phenomenon(files, {name: result.accuracy for name, result in results.items()})
    if args.json:
        numbers = {name: result.numbers() for name, result in results.items()}
        report = {"step": step, "score": scores.description, **total.numbers(), "chance": CHANCE, "files": numbers}
        print(json.dumps(report | ({"phenomena": phenomena} if phenomena else {})))
    else:
        if phenomena:
            print("mean of the files of each phenomenon")
        for name, accuracy in phenomena.items():
            print(f"  {name:<{width}} {accuracy:.4f}")
        counts = f"{plural(total.pairs, 'pair')}, {plural(total.ties, 'tie')}"
        print(f"  {'all':<{width}} {total.accuracy:.4f}  of {counts}; chance is {CHANCE}")
    return 0


def retrieval(args: argparse.Namespace) -> int:
    """Rank the documents of a collection for its queries and print the scores; return the exit status."""
    split = args.split or "test"
    collection = read_collection(Path(args.retrieval), split)
    flags.prepare_model(args)
    step = find_step(args.model_dir, flags.step_of(args), average=args.average)
    embedder, batch_size = embed.open_embedder(args, step), args.batch_size or 32
    queries, documents = (embedder.prompted(embedder.prompt_name(*names)) for names in (QUERY_PROMPTS, DOCUMENT_PROMPTS))
    similarity: Similarity = args.similarity or "cosine"
    scores = evaluate_retrieval(
        collection,
        lambda texts: queries.embed(texts, batch_size, progress="embedding queries").vectors,
        lambda texts: documents.embed(texts, batch_size, progress="embedding documents").vectors,
        similarity,
    )
    counts = {"queries": len(collection.queries), "documents": len(collection.corpus)}
    if args.json:
        print(json.dumps({"step": step, "split": split, "similarity": similarity, **counts, **scores}))
        return 0
    form = f"by {similarity} of {embedder.settings.description}"
    print(f"{_at(step)}{args.model_dir} on the {split} split of {args.retrieval}, {form}")
    print(f"{plural(counts['queries'], 'query', 'queries')}, {plural(counts['documents'], 'document')}")
    for name, value in scores.items():
        print(f"  {name:<24} {value:.4f}")
    return 0


def _at(step: int | None) -> str:
    return "" if step is None else f"step {step:,} of "
