"""`bertfam export`: a trained model as a Hugging Face folder."""

import argparse

from bertfam.commands import flags

SUMMARY = "write a Hugging Face folder from a trained model"
EXAMPLE = """\
  bertfam export --model_dir=model --output=huggingface
  python -c "from transformers import pipeline; print(pipeline('fill-mask', 'huggingface')('Returns a new [MASK].'))"
Of a run that trains several networks --output is a folder of folders, each with its own config.json and tokenizer: of ELECTRA
DIR/discriminator (ElectraForPreTraining, which is fine-tuned) and DIR/generator (ElectraForMaskedLM, which fills masks)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    flags.add_model_dir(parser)
    parser.add_argument(
        "--output",
        type=flags.folder,
        required=True,
        metavar="DIR",
        help="folder to make: config.json, safetensors, tokenizer files; one in it for each network where there are several",
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the tensors (default: float32)")
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint of the run (default: the newest)")
    flags.add_average(parser)


def main(args: argparse.Namespace) -> int:
    """Export; return the exit status."""
    import tempfile
    from pathlib import Path

    from bertfam.interop import huggingface
    from bertfam.storage.files import check_unused, new_folder
    from bertfam.training.model_dir import open_model

    # -- Refused before a checkpoint is read
    check_unused(args.output)

    # -- The model
    opened = open_model(args.model_dir, args.step, average=args.average)
    networks = opened.run.objective.split(opened.params)

    # -- The folders, with the tokenizer for rows as long as the model takes
    told = []
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
                extra=huggingface.special_ids(config, opened.vocabulary.token_ids),
            )
            for part in sorted(all_params.keys() - params.keys()):
                print(f"left out {part}: no class of transformers has it beside {', '.join(sorted(params))}")
            told.append(f"{name} {architecture}" if len(networks) > 1 else architecture)
    print(f"exported step {opened.step:,} of {args.model_dir} to {args.output}: {', '.join(told)}, {args.dtype}")
    return 0
