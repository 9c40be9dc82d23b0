"""`bertfam export`: export of a trained model to a Hugging Face folder."""

import argparse

from bertfam.commands import flags

SUMMARY = "write a Hugging Face folder from a trained model"
EXAMPLE = """\
  bertfam export --model_dir=model --output=huggingface
  python -c "from transformers import pipeline; print(pipeline('fill-mask', 'huggingface')('Returns a new [MASK].'))"
A run that trains several networks is exported to one folder per network, each with its own config.json and tokenizer. ELECTRA
gives DIR/discriminator (ElectraForPreTraining, for fine-tuning) and DIR/generator (ElectraForMaskedLM, for filling masks)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    flags.add_model_dir(parser)
    parser.add_argument(
        "--output",
        type=flags.folder,
        required=True,
        metavar="DIR",
        help="folder to create: config.json, safetensors, tokenizer files; with several networks one subfolder each",
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="dtype of the tensors (default: float32)"
    )
    flags.add_step(parser)
    flags.add_average(parser)
    flags.add_module_import(parser)


def main(args: argparse.Namespace) -> int:
    """Export the model; return the exit status."""
    import tempfile
    from pathlib import Path

    from bertfam.interop.folders import check_output
    from bertfam.storage.files import check_unused, new_folder

    flags.check_model_dir(args, huggingface=False)
    check_output("--output", args.output, args.model_dir)
    check_unused(args.output)

    from bertfam.interop import huggingface
    from bertfam.training.model_dir import open_model

    flags.import_modules(args)

    opened = open_model(args.model_dir, flags.step_of(args), average=args.average)
    networks = opened.run.objective.split(opened.params)

    architectures = []
    with tempfile.TemporaryDirectory() as tokenizer, new_folder(args.output) as partial:
        model = opened.run.objective.model
        before = huggingface.pieces_before(model, opened.vocabulary)
        opened.vocabulary.save(tokenizer, model_max_length=model.max_length, before=before)
        for name, all_params in networks.items():
            config = opened.run.objective.networks[name]
            params = huggingface.writable(config, all_params)
            architecture = huggingface.write(
                partial / name if len(networks) > 1 else partial,
                config,
                params,
                dtype=args.dtype,
                tokenizer_files=sorted(Path(tokenizer).iterdir()),
                extra=huggingface.special_ids(config, opened.vocabulary) | dict(opened.run.objective.huggingface_values),
            )
            for part in sorted(all_params.keys() - params.keys()):
                print(f"left out {part}: no class of transformers has it beside {', '.join(sorted(params))}")
            architectures.append(f"{name} {architecture}" if len(networks) > 1 else architecture)
    print(f"exported step {opened.step:,} of {args.model_dir} to {args.output}: {', '.join(architectures)}, {args.dtype}")
    return 0
