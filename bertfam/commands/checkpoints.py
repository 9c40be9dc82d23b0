"""`bertfam checkpoints`: list, verification and copies of a run's checkpoints."""

import argparse

from bertfam.commands import flags

SUMMARY = "list a run's checkpoints and verify them"
EXAMPLE = """\
  bertfam checkpoints --model_dir=model
  bertfam checkpoints --model_dir=model --verify
  bertfam checkpoints --model_dir=model --copy_weights=best --step=9000
The exit status is 1 if a checkpoint is damaged."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    flags.add_model_dir(parser)
    parser.add_argument(
        "--verify", action="store_true", help="read every byte and compare it with the manifest (default: compare sizes only)"
    )
    parser.add_argument(
        "--copy_weights",
        type=flags.folder,
        metavar="DIR",
        help="instead of listing, create a model folder from one checkpoint's parameters, without the optimizer state",
    )
    flags.add_step(parser, "the checkpoint that --copy_weights copies")
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """List or copy checkpoints; return the exit status."""
    import json

    from bertfam.errors import UserError
    from bertfam.interop.folders import check_output
    from bertfam.storage.files import check_unused
    from bertfam.training.checkpoints import listing
    from bertfam.training.checkpoints.weights import copy_weights

    if args.copy_weights and (args.verify or args.json):
        raise UserError(f"--{'verify' if args.verify else 'json'} goes with the list of checkpoints, not with --copy_weights")
    if args.copy_weights:
        check_output("--copy_weights", args.copy_weights, args.model_dir)
        check_unused(args.copy_weights)
        step = copy_weights(args.model_dir, args.copy_weights, flags.step_of(args))
        print(f"copied the weights of step {step:,} of {args.model_dir} to {args.copy_weights}, a model at its step 0")
        return 0
    if args.step is not None:
        raise UserError("--step says which checkpoint --copy_weights copies; give that too, or leave it out")
    rows = listing.rows(args.model_dir, verify=args.verify)
    print(json.dumps([row.json() for row in rows], indent=1) if args.json else listing.table(rows))
    return int(any(row.state == listing.DAMAGED for row in rows))
