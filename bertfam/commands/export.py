"""`bertfam export`: export of a trained model to a Hugging Face folder."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from bertfam.commands import embed, flags
from bertfam.errors import UserError, warn

if TYPE_CHECKING:
    from pathlib import Path

    from bertfam.interop.sentence_transformers import EmbeddingSettings
    from bertfam.models.mapping import Wrapper
    from bertfam.training.model_dir import TrainedModel

SUMMARY = "write a Hugging Face folder from a trained model"
EXAMPLE = """\
  bertfam export --model_dir=model --output=huggingface
  python -c "from transformers import pipeline; print(pipeline('fill-mask', 'huggingface')('Returns a new [MASK].'))"
A run that trains several networks is exported to one folder per network, each with its own config.json and tokenizer. ELECTRA
gives DIR/discriminator (ElectraForPreTraining, for fine-tuning) and DIR/generator (ElectraForMaskedLM, for filling masks).
With --sentence_transformers, SentenceTransformer(DIR) embeds texts as `bertfam embed` does, and trains the model on pairs.
Adapters of `bertfam finetune --lora` are merged into the kernels; --adapter_of=BASE writes them alone, in the format of peft."""


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
    parser.add_argument(
        "--adapter_of",
        metavar="BASE",
        help="of a run with --lora: write adapters and head alone, which peft.PeftModel loads on top of BASE, the Hugging Face "
        "folder or hub name of the model that the run started from",
    )
    parser.add_argument(
        "--dpr",
        action="store_true",
        help="write DPRQuestionEncoder and DPRContextEncoder, of a BERT with two towers (bertfam finetune --retrieval)",
    )
    parser.add_argument(
        "--onnx",
        choices=("float32", "int8"),
        nargs="?",
        const="float32",
        metavar="PRECISION",
        help="write model.onnx too, in float32 or int8 (default: float32), by PyTorch's exporter",
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

    from bertfam.interop import huggingface, model_card, onnx, sentence_transformers
    from bertfam.training.model_dir import check_floats, open_model

    flags.import_modules(args)

    opened = open_model(args.model_dir, flags.step_of(args), average=args.average)
    check_floats(opened.run, args.model_dir, "to export it")
    if args.onnx:
        onnx.check_class(str(args.model_dir), opened.run.objective.model.kind, opened.params)
    if args.adapter_of is not None:
        return _write_adapter(args, opened)
    networks = opened.run.objective.split(opened.params)
    settings = _settings(args, opened) if args.sentence_transformers else None
    wrappers = _dpr_classes(args, opened) if args.dpr else {}

    architectures = []
    with tempfile.TemporaryDirectory() as tokenizers, new_folder(args.output) as partial:
        for name, all_params in networks.items():
            config, own = opened.run.objective.networks[name], _with_own_vocabulary(opened, name)
            params = huggingface.writable(config, all_params)
            folder, tokenizer = partial / name if len(networks) > 1 else partial, Path(tokenizers) / name
            _save_tokenizer(own, config, tokenizer)
            architecture = huggingface.write(
                folder,
                config,
                params,
                dtype=args.dtype,
                tokenizer_files=sorted(tokenizer.iterdir()),
                extra=_config_values(own, config),
                wrapper=wrappers.get(name),
            )
            if settings:
                sentence_transformers.write_settings(folder, settings, config.hidden_size)
            facts = _facts(args, own, config, params)
            card = model_card.ModelCard(architecture, facts, settings.description if settings else None)
            (folder / model_card.NAME).write_text(card.text(), encoding="utf-8")
            if args.onnx:
                print(f"{onnx.FILE} in {args.onnx}: {_write_onnx(args, folder, config)}")
            for part in sorted(all_params.keys() - params.keys()):
                print(f"left out {part}: no class of transformers has it beside {', '.join(sorted(params))}")
            architectures.append(f"{name} {architecture}" if len(networks) > 1 else architecture)
    _warn_of_shift(opened)
    print(f"exported step {opened.step:,} of {args.model_dir} to {args.output}: {', '.join(architectures)}, {args.dtype}")
    if settings:
        print(f"SentenceTransformer({args.output!r}) embeds texts by {settings.description}")
    return 0


def _write_onnx(args: argparse.Namespace, folder: Path, config: Any) -> str:
    """Write model.onnx into the folder of a network; describe its outputs."""
    from bertfam.interop import onnx

    outputs = "outputs " + ", ".join(onnx.write(folder, args.onnx, config.kind))
    return outputs if config.kind == "encoder" else f"{outputs}; without a cache of keys and values"


def _warn_of_shift(opened: TrainedModel) -> None:
    """Warn of a masked-token head that transformers reads at other positions."""
    if getattr(opened.run.objective, "shifted", False):
        warn(
            [
                "the masked-token head predicts each token at the position before it (CausalAndMasked.shifted), where "
                "transformers does not look: read its logits one position earlier"
            ]
        )


def _write_adapter(args: argparse.Namespace, opened: TrainedModel) -> int:
    """Write the adapters of a run alone; return the exit status."""
    from bertfam.interop import model_card, peft
    from bertfam.storage.files import new_folder

    objective = opened.run.objective
    lora = getattr(objective, "lora", None)
    if lora is None:
        raise UserError(
            f"--adapter_of: {args.model_dir} has no adapters (`bertfam finetune --lora=RANK` trains them); leave it out"
        )
    peft.check_base(args.adapter_of, opened.params)
    (config,) = objective.networks.values()
    extra = _config_values(opened, config)
    with new_folder(args.output) as partial:
        written = {"base": args.adapter_of, "dtype": args.dtype, "extra": extra}
        architecture = peft.write(partial, config, opened.params, lora, **written)
        _save_tokenizer(opened, config, partial)
        card = model_card.ModelCard(architecture, _facts(args, opened, config, opened.params), base=args.adapter_of)
        (partial / model_card.NAME).write_text(card.text(), encoding="utf-8")
    print(
        f"exported the adapters of step {opened.step:,} of {args.model_dir} to {args.output}: of rank {lora.rank}, for a "
        f"{architecture} from {args.adapter_of}, {args.dtype}"
    )
    return 0


def _with_own_vocabulary(opened: TrainedModel, network: str) -> TrainedModel:
    """Return the model with the vocabulary of one of its networks."""
    import dataclasses

    from bertfam.data import vocabularies

    folder = opened.run.objective.vocabulary_folders.get(network)
    return opened if folder is None else dataclasses.replace(opened, vocabulary=vocabularies.load(folder))


def _save_tokenizer(opened: TrainedModel, config: Any, folder: str | Path) -> None:
    from bertfam.interop import huggingface

    before = huggingface.pieces_before(config, opened.vocabulary)
    opened.vocabulary.save(folder, model_max_length=config.max_length, before=before)


def _config_values(opened: TrainedModel, config: Any) -> dict[str, Any]:
    """Return the values of a network's config.json that its vocabulary and its head state."""
    from bertfam.interop import huggingface

    return huggingface.special_ids(config, opened.vocabulary) | dict(opened.run.objective.huggingface_values)


def _dpr_classes(args: argparse.Namespace, opened: TrainedModel) -> dict[str, Wrapper]:
    """Return the class of transformers of each tower; raise UserError if the model is none that DPR's classes compute."""
    from bertfam.interop.huggingface import family_of
    from bertfam.objectives.retrieval.dual_encoder import PASSAGE, PROJECTION, QUERY

    objective = opened.run.objective
    networks = objective.split(opened.params)
    classes = [one for one in family_of(objective.model).wrappers if one.model_type == "dpr"]
    is_changed = objective.normalize or any(PROJECTION in network for network in networks.values())
    if set(networks) != {QUERY, PASSAGE} or not classes or is_changed or objective.pooling != "cls":
        raise UserError(
            f"--dpr: {args.model_dir} is not two towers of a BERT whose vectors are [CLS] as it is, as in DPR's classes; leave "
            "it out"
        )
    return dict(zip((QUERY, PASSAGE), classes, strict=True))


def _check_flags(args: argparse.Namespace) -> None:
    """Raise UserError for settings of embeddings without the files that state them."""
    embed.check_settings(args)
    if args.dpr and (
        other := next((name for name in ("sentence_transformers", "onnx", "adapter_of") if getattr(args, name)), "")
    ):
        raise UserError(f"--dpr and --{other} write two kinds of folders; leave one of them out")
    if args.onnx:
        from bertfam.interop import onnx

        if args.adapter_of is not None:
            raise UserError("--adapter_of writes adapters alone, and --onnx a whole model; leave one of them out")
        onnx.check_installed()
    if args.adapter_of is not None and args.sentence_transformers:
        raise UserError("--adapter_of and --sentence_transformers write two kinds of folders; leave one of them out")
    for flag in ("pooling", "normalize", "length"):
        if getattr(args, flag) and not args.sentence_transformers:
            raise UserError(f"--{flag} is of embeddings: give --sentence_transformers with it, or leave it out")


def _facts(args: argparse.Namespace, opened: TrainedModel, config: Any, params: Any) -> dict[str, str]:
    """Return the facts about a network for its model card; a model that was imported and not trained has few."""
    import jax

    from bertfam import __version__
    from bertfam.training.logs.training_facts import training_facts
    from bertfam.training.trained_networks import ENCODER_DECODER

    objective, tokens = opened.run.objective, opened.vocabulary.size
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    layers = f"{config.num_layers} + {config.num_layers}" if config.kind == ENCODER_DECODER else config.num_layers
    facts = {
        "architecture": f"{layers} layers, hidden size {config.hidden_size}, {count:,} parameters",
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
    from bertfam.objectives.retrieval.dual_encoder import PROJECTION
    from bertfam.training.trained_networks import ENCODER, embedding_settings

    model, vocabulary = opened.run.objective.model, opened.vocabulary
    if model.kind != ENCODER:
        raise UserError(
            f"--sentence_transformers: {args.model_dir} holds {DESCRIPTIONS[model.kind]}, and only encoders embed texts"
        )
    if any(PROJECTION in network for network in opened.run.objective.split(opened.params).values()):
        raise UserError(
            f"--sentence_transformers: {args.model_dir} projects its vectors, for which sentence-transformers has no module; use "
            "bertfam embed and index, train with DualEncoder.projection = None, or leave the flag out for the encoder alone"
        )
    changes = {"pooling": args.pooling, "normalize": args.normalize or None, "length": args.length}
    settings = Embedder.create(model, {}, vocabulary, embedding_settings(opened), **changes).settings
    tokens = vocabulary.token_ids
    if settings.pooling == "cls" and tokens.frame and tokens.cls not in [token.id for token in tokens.frame.before]:
        raise UserError("--pooling=cls: sentence-transformers takes the first token, and [CLS] is the last one here: use mean")
    return settings
