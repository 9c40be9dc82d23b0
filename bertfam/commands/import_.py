"""`bertfam import`: a Hugging Face folder as a model folder."""

import argparse

from bertfam.commands import flags

SUMMARY = "make a model folder from a Hugging Face folder"
EXAMPLE = """\
  bertfam export --model_dir=model --output=huggingface
  bertfam import --input=huggingface --output=imported
  bertfam fill --model_dir=imported "Returns a new [MASK]."
--input is any folder on disk with the config.json of a BERT or one of its kin, of a GPT, GPT-2, OPT, T5, mT5 or BART,
model.safetensors and the tokenizer's files; the first line makes one of a model that bertfam pretrain has trained. A
discriminator of ELECTRA goes on with a new generator, a generator of its as a masked language model, a decoder as a causal
language model, T5 with random spans and BART with its noises."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "--input",
        type=flags.folder,
        required=True,
        metavar="DIR",
        help="Hugging Face folder: config.json, safetensors, tokenizer files",
    )
    parser.add_argument("--output", type=flags.folder, required=True, metavar="MODEL_DIR", help="model folder to make")


def main(args: argparse.Namespace) -> int:
    """Import; return the exit status."""
    import jax

    from bertfam.config import Override, load
    from bertfam.config.values import bindings_of
    from bertfam.data import vocabularies
    from bertfam.interop import huggingface
    from bertfam.storage.files import check_unused, new_folder
    from bertfam.training.checkpoints import Checkpoints

    # -- The model and its vocabulary
    check_unused(args.output)
    model, params, ignored = huggingface.read(args.input)
    parts = sorted(params)
    vocabulary = vocabularies.load(args.input)
    model = huggingface.with_vocabulary(model, vocabulary.size, args.input)

    # -- A configuration: this model, and the defaults of a run to go on with
    # vocab_size is left to the vocabulary
    origin = f"--input={args.input}"
    config = load(
        [huggingface.family_of(model).objective_of(params), "runs/defaults.gin"],
        [
            Override(f"MODEL = @{type(model).__name__}()", origin),
            *bindings_of(model, origin, without=("vocab_size",)),
            Override(f"Stage.length = {min(128, model.max_length or 128)}", origin),
        ],
    )
    objective = config.build("Run").objective
    params = objective.joined({next(iter(objective.networks)): params})

    # -- The folder
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
