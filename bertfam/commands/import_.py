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
    import jax

    from bertfam.config import Override, load
    from bertfam.config.values import bindings_of
    from bertfam.data import vocabularies
    from bertfam.interop import huggingface
    from bertfam.storage.files import check_unused, new_folder
    from bertfam.training.checkpoints import Checkpoints

    check_unused(args.output)
    flags.import_modules(args)
    model, params, ignored = huggingface.read(args.input)
    parts = sorted(params)
    vocabulary = vocabularies.load(args.input)
    model = huggingface.with_vocabulary(model, vocabulary, args.input)

    # The model with the defaults of a run; vocab_size is left to the vocabulary.
    origin = f"--input={args.input}"
    config = load(
        [huggingface.family_of(model).objective_of(params), "runs/defaults.gin"],
        [
            Override(f"MODEL = @{type(model).__name__}()", origin),
            *bindings_of(model, origin, without=("vocab_size",)),
            Override(f"Stage.length = {min(128, model.max_length or 128)}", origin),
        ],
        args.module_import,
    )
    objective = config.build("Run").objective
    params = objective.joined({next(iter(objective.networks)): params})

    with new_folder(args.output) as folder:
        (folder / "config.gin").write_text(config.complete("Run").text())
        vocabulary.save(folder / "vocab", model_max_length=model.max_length)
        checkpoints = Checkpoints(folder)
        checkpoints.save_params(0, jax.tree.map(jax.numpy.asarray, params))
        checkpoints.close()
    for name in ignored:
        print(f"left out {name}: it has no place in this model")
    print(f"imported {args.input} to {args.output}: {', '.join(parts)}")
    return 0
