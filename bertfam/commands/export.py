"""`bertfam export`: export of a trained model to a Hugging Face folder."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from bertfam.commands import embed, flags
from bertfam.errors import UserError

if TYPE_CHECKING:
    from bertfam.interop.sentence_transformers import EmbeddingSettings
    from bertfam.training.model_dir import TrainedModel

SUMMARY = "write a Hugging Face folder from a trained model"
EXAMPLE = """\
  bertfam export --model_dir=model --output=huggingface
  python -c "from transformers import pipeline; print(pipeline('fill-mask', 'huggingface')('Returns a new [MASK].'))"
A run that trains several networks is exported to one folder per network, each with its own config.json and tokenizer. ELECTRA
gives DIR/discriminator (ElectraForPreTraining, for fine-tuning) and DIR/generator (ElectraForMaskedLM, for filling masks).
With --sentence_transformers, SentenceTransformer(DIR) embeds texts as `bertfam embed` does, and trains the model on pairs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    flags.add_model_dir(parser)
    parser.add_argument(
        "--output",
        type=flags.folder,
        required=True,
        metavar="DIR",
        help="folder to create: config.json, safetensors, tokenizer files, a model card (README.md); with several networks one "
        "subfolder each",
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="dtype of the tensors (default: float32)"
    )
    flags.add_step(parser)
    flags.add_average(parser)
    flags.add_module_import(parser)
    group = parser.add_argument_group("embeddings")
    group.add_argument(
        "--sentence_transformers",
        action="store_true",
        help="write the files of sentence-transformers (2 or newer) too: modules.json, 1_Pooling/config.json, ...",
    )
    embed.add_settings(group)


def main(args: argparse.Namespace) -> int:
    """Export the model; return the exit status."""
    import tempfile
    from pathlib import Path

    from bertfam.interop.folders import check_output
    from bertfam.storage.files import check_unused, new_folder

    flags.check_model_dir(args, huggingface=False)
    check_output("--output", args.output, args.model_dir)
    check_unused(args.output)
    _check_flags(args)

    from bertfam.interop import huggingface, model_card, sentence_transformers
    from bertfam.training.model_dir import open_model

    flags.import_modules(args)

    opened = open_model(args.model_dir, flags.step_of(args), average=args.average)
    networks = opened.run.objective.split(opened.params)
    settings = _settings(args, opened) if args.sentence_transformers else None

    architectures = []
    with tempfile.TemporaryDirectory() as tokenizer, new_folder(args.output) as partial:
        model = opened.run.objective.model
        before = huggingface.pieces_before(model, opened.vocabulary)
        opened.vocabulary.save(tokenizer, model_max_length=model.max_length, before=before)
        for name, all_params in networks.items():
            config = opened.run.objective.networks[name]
            params = huggingface.writable(config, all_params)
            folder = partial / name if len(networks) > 1 else partial
            architecture = huggingface.write(
                folder,
                config,
                params,
                dtype=args.dtype,
                tokenizer_files=sorted(Path(tokenizer).iterdir()),
                extra=huggingface.special_ids(config, opened.vocabulary) | dict(opened.run.objective.huggingface_values),
            )
            if settings:
                sentence_transformers.write_settings(folder, settings, config.hidden_size)
            facts = _facts(args, opened, config, params)
            card = model_card.ModelCard(architecture, facts, settings.description if settings else None)
            (folder / model_card.NAME).write_text(card.text(), encoding="utf-8")
            for part in sorted(all_params.keys() - params.keys()):
                print(f"left out {part}: no class of transformers has it beside {', '.join(sorted(params))}")
            architectures.append(f"{name} {architecture}" if len(networks) > 1 else architecture)
    print(f"exported step {opened.step:,} of {args.model_dir} to {args.output}: {', '.join(architectures)}, {args.dtype}")
    if settings:
        print(f"SentenceTransformer({args.output!r}) embeds texts by {settings.description}")
    return 0


def _check_flags(args: argparse.Namespace) -> None:
    """Raise UserError for settings of embeddings without the files that state them."""
    embed.check_settings(args)
    for flag in ("pooling", "normalize", "length"):
        if getattr(args, flag) and not args.sentence_transformers:
            raise UserError(f"--{flag} is of embeddings: give --sentence_transformers with it, or leave it out")


def _facts(args: argparse.Namespace, opened: TrainedModel, config: Any, params: Any) -> dict[str, str]:
    """Return the facts about a network for its model card; a model that was imported and not trained has few."""
    import jax

    from bertfam import __version__
    from bertfam.training.logs.training_facts import training_facts

    objective, tokens = opened.run.objective, opened.vocabulary.size
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    facts = {
        "architecture": f"{config.num_layers} layers, hidden size {config.hidden_size}, {count:,} parameters",
        "vocabulary": f"{type(opened.vocabulary).__name__} of {tokens:,} tokens",
        "texts": f"up to {config.max_length:,} tokens" if config.max_length else "of any length",
    }
    if opened.step:
        terms = ", ".join(f"{value:g} {name}" for name, value in objective.coefficients.items())
        facts["objective"] = f"{type(objective).__name__} ({terms})"
        facts |= training_facts(args.model_dir, opened.step)
    if args.average:
        facts["parameters"] = "the moving average of those of training"
    return facts | {"written by": f"bertfam {__version__}, jax {jax.__version__}"}


def _settings(args: argparse.Namespace, opened: TrainedModel) -> EmbeddingSettings:
    """Return the settings of --sentence_transformers; raise UserError if the model cannot embed texts so."""
    from bertfam.embedding.embedder import Embedder
    from bertfam.models.network import DESCRIPTIONS
    from bertfam.training.trained_networks import ENCODER, embedding_settings

    model, vocabulary = opened.run.objective.model, opened.vocabulary
    if model.kind != ENCODER:
        raise UserError(
            f"--sentence_transformers: {args.model_dir} holds {DESCRIPTIONS[model.kind]}, and only encoders embed texts"
        )
    changes = {"pooling": args.pooling, "normalize": args.normalize or None, "length": args.length}
    settings = Embedder.create(model, {}, vocabulary, embedding_settings(opened), **changes).settings
    tokens = vocabulary.token_ids
    if settings.pooling == "cls" and tokens.frame and tokens.cls not in [token.id for token in tokens.frame.before]:
        raise UserError("--pooling=cls: sentence-transformers takes the first token, and [CLS] is the last one here: use mean")
    return settings
