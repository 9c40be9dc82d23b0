"""Body of `bertfam evaluate`: scores on held-out text, on minimal pairs and on seqio tasks."""

import argparse
import dataclasses
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jax

from bertfam import session
from bertfam.api import LanguageModel, load_networks
from bertfam.commands import embed, flags
from bertfam.data import vocabularies
from bertfam.data.seqio_tasks.corpus import fill_registry
from bertfam.data.text_data import HeldOut
from bertfam.data.token_cache.cache import TokenCache
from bertfam.embedding.embedder import DOCUMENT_PROMPTS, QUERY_PROMPTS
from bertfam.errors import UserError, warn
from bertfam.evaluation.baselines import baselines, training_counts
from bertfam.evaluation.minimal_pairs import CHANCE, PairCounts, compare, read_pairs
from bertfam.evaluation.perplexity import lacks_words, perplexities
from bertfam.evaluation.retrieval import Similarity, evaluate_retrieval, read_collection
from bertfam.evaluation.sentence_scores import scorer
from bertfam.interop.folders import is_huggingface
from bertfam.planning.choices import choose_execution, with_choices
from bertfam.plurals import plural
from bertfam.sharding.mesh import MeshShape
from bertfam.storage.paths import to_path
from bertfam.training.model_dir import TrainedModel, open_model, read_run
from bertfam.training.run import Run
from bertfam.training.stages import Stage
from bertfam.training.teachers import read_teachers
from bertfam.training.trained_networks import find_step
from bertfam.training.trainer import Scores, Trainer
from bertfam.training.warm_start.imported_model import read_model


@dataclass(frozen=True)
class Evaluation:
    """Trained model, and the held-out text to measure it on.

    Attributes:
      run: the run of MODEL_DIR, whose text settings hold.
      model: the model of a checkpoint, or of a Hugging Face folder.
      step: the step of the checkpoint; a Hugging Face folder has none.
      cache: the token cache.
      mesh: all devices that are here, whatever mesh the run was trained on.
      stage: the shape of a batch.
      held_out: the batches.
    """

    run: Run
    model: TrainedModel
    step: int | None
    cache: TokenCache
    mesh: jax.sharding.Mesh
    stage: Stage
    held_out: HeldOut


def held_out_text(args: argparse.Namespace, split: str) -> int:
    """Score a split of a token cache and print; return the exit status."""
    evaluation = _open(args, split)
    scores, targets, corpora = _score(args.model_dir, evaluation)
    run, cache, held_out, stage = evaluation.run, evaluation.cache, evaluation.held_out, evaluation.stage
    scores |= perplexities(scores, run.data, cache, split)
    for name, values in corpora.items():
        values |= perplexities(values, run.data, cache, split, name)
    if lacks_words(run.data, cache, split):
        warn(
            [f"{cache.directory} has no counts of words and bytes, which perplexities per word and byte require; build it again"]
        )
    if args.baselines:
        tokens = evaluation.model.vocabulary.token_ids
        counts = training_counts(run.data, cache, tokens, stage.length, stage.batch_size)
        scores |= baselines(held_out.source, held_out.steps, held_out.batch_size, counts)
    if args.json:
        by_corpus = {"corpora": corpora} if corpora else {}
        result = {"step": evaluation.step, "split": split, "rows": held_out.rows, "targets": targets, **scores, **by_corpus}
        print(json.dumps(result))
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
    flags.import_modules(args)
    if is_huggingface(args.model_dir):
        model, step = _open_imported(args), None
        run, cache = model.run, TokenCache(args.cache_dir)
    else:
        run = read_run(args.model_dir)
        elsewhere = ", or name its copy by --cache_dir"
        cache = session.open_saved_cache(run, to_path(args.model_dir), args.cache_dir, otherwise=elsewhere)
        model = open_model(args.model_dir, flags.step_of(args), average=args.average)
        step = model.step
    if vocabularies.load(cache.vocabulary_directory).fingerprint != model.vocabulary.fingerprint:
        raise UserError(f"{cache.directory} was built with another vocabulary than {args.model_dir}; build one with its vocab/")
    mesh = MeshShape().build()
    last = run.stages[-1]
    # Rows fill the devices; they are the same in batches of any size.
    stage = dataclasses.replace(last, batch_size=-(-last.batch_size // mesh.size) * mesh.size)
    sizes = (cache, model.vocabulary.token_ids, stage.length, stage.batch_size)
    held_out = run.data.held_out(*sizes, split=split, at_most=args.batches)
    if held_out is None:
        raise UserError(
            f"the {split} split of {cache.directory} has too few documents; build a cache of other text by `bertfam cache "
            f"--vocab={args.model_dir}/vocab` and give it with --cache_dir"
        )
    return Evaluation(run, model, step, cache, mesh, stage, held_out)


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
    return TrainedModel(imported.run.sized(imported.vocabulary.size), imported.vocabulary, 0, imported.params)


def _score(model_dir: str, evaluation: Evaluation) -> Scores:
    """Score the held-out batches."""
    model = evaluation.model
    # The backend that the run names may not exist on these devices.
    execution = dataclasses.replace(model.run.objective.execution, attention="auto")
    objective: Any = dataclasses.replace(cast(Any, model.run.objective), execution=execution)
    run = dataclasses.replace(model.run, objective=objective, stages=(evaluation.stage,), microbatches=1)
    # An imported model has not been trained, and its run leaves the choice to the devices.
    run = with_choices(run, choose_execution(objective, evaluation.mesh.devices.flat[0].platform))
    trainer = Trainer(run, evaluation.mesh)
    missing = sorted(trainer.shardings.params.keys() - model.params.keys())
    if missing:
        raise UserError(f"{model_dir} was imported without {', '.join(missing)}; train them with `bertfam pretrain` first")
    aux = _read_aux(model)
    params = jax.device_put(model.params, trainer.shardings.params)
    scores = trainer.scores(params, evaluation.held_out, 0, aux=aux and trainer.placed_aux(aux))
    assert scores is not None  # No request to stop can cut it short.
    if model.run.objective.teachers and not aux:
        for values in (scores.values, *scores.corpora.values()):
            del values["loss"]  # The teacher's terms are a part of it.
    return scores


def _read_aux(model: TrainedModel) -> dict[str, Any]:
    """Read what the objective reads and does not train; {} if the teacher is missing, for a model has scores without it too."""
    try:
        return read_teachers(model.run, model.vocabulary)
    except UserError as error:
        warn([f"scores without the teacher are those of the model alone: {error}"])
        return {}


def task(args: argparse.Namespace, split: str) -> int:
    """Evaluate a seqio task and print; return the exit status."""
    fill_registry(args.module_import)
    step = find_step(args.model_dir, flags.step_of(args), average=args.average)
    networks = load_networks(args.model_dir, step=step, average=args.average).values()
    model = next((network for network in networks if isinstance(network, LanguageModel)), None)
    if model is None:
        raise UserError(f"{args.model_dir} holds an encoder, but --task requires a causal LM or an encoder-decoder")

    # This imports seqio, and with it TensorFlow.
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
        print(json.dumps({"step": step, "split": split, "tasks": results}))
    else:
        source = f"{_at(step)}{args.model_dir}"
        print(f"{source} on the {split} split of --task={args.task}", *format_results(results), sep="\n")
    return 0


def minimal_pairs(args: argparse.Namespace) -> int:
    """Compare the sentences of minimal pairs and print; return the exit status."""
    files = read_pairs(Path(args.blimp), args.limit)
    flags.import_modules(args)
    step = find_step(args.model_dir, flags.step_of(args), average=args.average)
    scores = scorer(load_networks(args.model_dir, step=step, average=args.average))
    if not args.json:
        print(f"{_at(step)}{args.model_dir} on the minimal pairs of {args.blimp}, by {scores.description}")
    width = max(24, *map(len, files))
    results = {}
    for name, pairs in files.items():
        results[name] = compare(pairs, scores.score)
        if not args.json:
            print(f"  {name:<{width}} {results[name].accuracy:.4f}", flush=True)
    total = sum(results.values(), PairCounts())
    if args.json:
        numbers = {name: result.numbers() for name, result in results.items()}
        print(json.dumps({"step": step, "score": scores.description, **total.numbers(), "chance": CHANCE, "files": numbers}))
    else:
        counts = f"{plural(total.pairs, 'pair')}, {plural(total.ties, 'tie')}"
        print(f"  {'all':<{width}} {total.accuracy:.4f}  of {counts}; chance is {CHANCE}")
    return 0


def retrieval(args: argparse.Namespace) -> int:
    """Rank the documents of a collection for its queries and print the scores; return the exit status."""
    split = args.split or "test"
    collection = read_collection(Path(args.retrieval), split)
    flags.import_modules(args)
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
