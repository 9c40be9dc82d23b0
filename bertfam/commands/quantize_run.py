"""Body of `bertfam quantize`."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from tqdm import tqdm

from bertfam.commands import flags
from bertfam.commands.finetune import text_files
from bertfam.compression.calibration import Calibration
from bertfam.compression.quantization import Quantization, axes_of, unmatched
from bertfam.config import Config, Override, load
from bertfam.data.rows.length_batches import row_length
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.interop.folders import is_huggingface
from bertfam.objectives.fine_tuning.bodies import BODIES
from bertfam.plurals import plural
from bertfam.storage.files import new_folder, write_text
from bertfam.storage.paths import to_path
from bertfam.training.checkpoints.weights import write_params
from bertfam.training.integrity import model_dir_files
from bertfam.training.model_dir import check_floats, copy_own_vocabularies, open_model, with_own_vocabularies
from bertfam.training.run import Run
from bertfam.training.warm_start.imported_model import read_model

_BATCH = 32  # texts at a time


class _Source(NamedTuple):
    """Model that is quantised: configuration, sized run, vocabulary, and parameters with adapters merged into the kernels."""

    config: Config
    run: Run
    vocabulary: Vocabulary
    params: dict[str, Any]


def quantize(args: argparse.Namespace) -> int:
    """Quantise and print the sizes; return the exit status."""
    source = _open(args)
    quantization: Quantization = source.run.quantization  # type: ignore[assignment]
    _check(args, source, quantization)
    ranges = _calibrate(args, source, quantization) if args.activations == "static" else None
    params = quantization.quantized(source.params, axes_of(source.run.boxed_params), ranges)
    with new_folder(args.output) as folder:
        _write(folder, source, params)
    kernels = len(quantization.kernels(source.params))
    total = sum(int(leaf.size) for leaf in jax.tree.leaves(source.params))
    floats = sum(int(leaf.size) for leaf in jax.tree.leaves(params) if jnp.issubdtype(leaf.dtype, jnp.floating))
    ranges_of = {"dynamic": "int8 inputs of dynamic ranges", "static": "int8 inputs of static ranges", "none": "float inputs"}
    print(
        f"quantized {args.model_dir} to {args.output}: {plural(kernels, 'kernel')} of all layers in int{args.bits}, "
        f"{ranges_of[args.activations]}; {floats:,} numbers in float32, scales included, beside {total:,} parameters"
    )
    print(f"parameters {_megabytes(source.params):.1f} MB -> {_megabytes(params):.1f} MB")
    return 0


def _open(args: argparse.Namespace) -> _Source:
    """Open the model, and configure what is written."""
    flags.prepare_model(args)
    values = {"activations": args.activations, "bits": int(args.bits), "keep": tuple(args.keep)}
    lines = ["Run.quantization = @Quantization()", *(f"Quantization.{name} = {value!r}" for name, value in values.items())]
    if is_huggingface(args.model_dir):
        for flag, is_given in (("step", args.step is not None), ("average", args.average)):
            if is_given:
                raise UserError(f"--{flag}: {args.model_dir} is a Hugging Face folder and has no checkpoints; leave the flag out")
        imported = read_model(args.model_dir, f"--model_dir={args.model_dir}", args.module_import)
        config, params, vocabulary = imported.config, imported.params, imported.vocabulary
    else:
        opened = open_model(args.model_dir, flags.step_of(args), average=args.average)
        check_floats(opened.run, args.model_dir, "to quantise it")
        objective, vocabulary = opened.run.objective, opened.vocabulary
        params = objective.joined(objective.split(opened.params))
        path = str(to_path(args.model_dir) / "config.gin")
        saved = load([path], (), args.module_import, saved=[path])
        config = with_own_vocabularies(saved, to_path(args.model_dir))
        # Adapters are merged, and nothing is trained.
        lines += [f"FineTuning.{name} = None" for name in ("lora", "quantization", "gates") if getattr(objective, name, None)]
    for line in lines:
        config = config.with_binding(Override(line, f"--activations={args.activations}"))
    return _Source(config, config.build("Run").fitted(vocabulary), vocabulary, params)


def _check(args: argparse.Namespace, source: _Source, quantization: Quantization) -> None:
    """Raise UserError if there is nothing to quantise, or a number that has no integer."""
    if wrong := unmatched(args.keep, source.params):
        example = "/".join(next(iter(traverse_util.flatten_dict(source.params))))
        raise UserError(f"--keep={wrong[0]} is the name of no parameter; names are as {example}")
    kernels = quantization.kernels(source.params)
    if not kernels:
        raise UserError(
            f"{args.model_dir} has no kernels to quantise: those of its layers are all kept by --keep, or named otherwise"
        )
    flat = traverse_util.flatten_dict(source.params)
    for path in kernels:
        if not np.isfinite(flat[path]).all():
            raise UserError(
                f"{'/'.join(path)} of {args.model_dir} is NaN or infinite: its training diverged; use an earlier --step"
            )
    if args.activations == "static" and len(source.run.objective.networks) > 1:
        names = ", ".join(source.run.objective.networks)
        raise UserError(
            f"--activations=static calibrates one network, and {args.model_dir} has {names}: give --activations=dynamic"
        )


def _calibrate(args: argparse.Namespace, source: _Source, quantization: Quantization) -> dict[tuple[str, ...], np.ndarray]:
    """Run the network on the texts; return the greatest magnitude of the inputs of each kernel, float32[layers]."""
    (model,) = source.run.objective.networks.values()
    body = BODIES[model.kind]
    networks = body.networks(model, source.run.objective.execution)
    calibration = Calibration(source.params, quantization.kernels(source.params))

    @jax.jit
    def run(params: Any, batch: Any) -> jax.Array:
        with calibration.observe(batch["encoder_segment_ids"] > 0):
            return body.hidden(networks, params, batch, train=False, collect=(), rngs=None)[0]

    length = min(args.length, model.max_length or args.length)
    encoded = [source.vocabulary.encode_prompt(text).ids[:length] for text in islice(_texts(args), args.limit)]
    encoded = sorted((ids for ids in encoded if len(ids)), key=len)
    if not encoded:
        raise UserError(f"--calibration={args.calibration[0]} has no texts")
    pad = source.vocabulary.token_ids.pad
    for begin in tqdm(range(0, len(encoded), _BATCH), "calibrating", disable=None, leave=False):
        run(calibration.params, _rows(encoded[begin : begin + _BATCH], pad, length)).block_until_ready()
    return calibration.ranges()


def _texts(args: argparse.Namespace) -> Iterator[str]:
    """Yield the texts of --calibration."""
    corpus = text_files(args, args.calibration)
    return (text for path in corpus.files("train") for _, (text,), _ in corpus.records(path))


def _rows(texts: Sequence[np.ndarray], pad: int, longest: int) -> dict[str, np.ndarray]:
    """Make the rows of the tokens of at most `_BATCH` texts, int32[_BATCH, length] each; the last text is repeated."""
    length = row_length(len(texts[-1]), longest)
    tokens, segment_ids = np.full((_BATCH, length), pad, np.int32), np.zeros((_BATCH, length), np.int32)
    for row in range(_BATCH):
        ids = texts[min(row, len(texts) - 1)]
        tokens[row, : len(ids)], segment_ids[row, : len(ids)] = ids, 1
    types = np.zeros_like(tokens)
    return {"encoder_input_tokens": tokens, "encoder_segment_ids": segment_ids, "encoder_token_type_ids": types}


def _write(folder: Path, source: _Source, params: Mapping[str, Any]) -> None:
    """Write the model folder."""
    write_text(folder / "config.gin", source.config.complete("Run").text())
    source.vocabulary.save(folder / "vocab", model_max_length=source.run.objective.model.max_length)
    copy_own_vocabularies(folder, source.run.objective.vocabulary_folders)
    model_dir_files.write(folder, source.vocabulary.fingerprint)
    write_params(folder, params)


def _megabytes(params: Any) -> float:
    """Return the size of parameters in millions of bytes; two int4 are one byte."""
    bits = [leaf.size * (4 if leaf.dtype == jnp.int4 else 8 * leaf.dtype.itemsize) for leaf in jax.tree.leaves(params)]
    return sum(bits) / 8e6
