"""`bertfam import`: conversion of a Hugging Face folder to a model folder."""

import argparse

from bertfam.commands import flags

SUMMARY = "make a model folder from a Hugging Face folder"
EXAMPLE = """\
  bertfam export --model_dir=model --output=huggingface
  bertfam import --input=huggingface --output=imported
  bertfam fill --model_dir=imported "Returns a new [MASK]."
--input is a folder on disk with config.json, model.safetensors and tokenizer files of a supported family: BERT and its relatives,
GPT, GPT-2, OPT, T5, mT5 or BART. The first line above creates one from a model that bertfam pretrain has trained. The model
folder continues training with the family's objective: an ELECTRA discriminator with a new generator, an ELECTRA generator as a
masked language model, a decoder as a causal language model, T5 with random spans, BART with its noises."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "--input",
        type=flags.folder,
        required=True,
        metavar="DIR",
        help="Hugging Face folder: config.json, safetensors, tokenizer files",
    )
    parser.add_argument("--output", type=flags.folder, required=True, metavar="MODEL_DIR", help="model folder to create")
    flags.add_module_import(parser)


def main(args: argparse.Namespace) -> int:
    """Import the model; return the exit status."""
    from bertfam.errors import printable
    from bertfam.storage.files import check_unused, new_folder
    from bertfam.training.checkpoints.weights import write_params
    from bertfam.training.integrity import model_dir_files
    from bertfam.training.warm_start.imported_model import read_model

    check_unused(args.output)
    flags.import_modules(args)
    model = read_model(args.input, f"--input={args.input}", args.module_import)
    with new_folder(args.output) as folder:
        (folder / "config.gin").write_text(model.config.complete("Run").text(), encoding="utf-8")
        model.vocabulary.save(folder / "vocab", model_max_length=model.run.objective.model.max_length)
        model_dir_files.write(folder, model.vocabulary.fingerprint)
        write_params(folder, model.params)
    for name in model.ignored:
        print(f"left out {printable(name)}: it has no place in this model")
    print(f"imported {args.input} to {args.output}: {', '.join(model.parts)}")
    return 0
