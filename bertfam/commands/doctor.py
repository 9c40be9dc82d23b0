"""`bertfam doctor`: checks of the installation and the devices, and a small model that must learn."""

import argparse

SUMMARY = "check the installation: devices, libraries, extras, folders, and a small model that must learn"
EXAMPLE = """\
  bertfam doctor
  bertfam doctor --skip_training
The exit status is 1 if something is broken: a library that is missing or too old, devices that do not start, a folder that
cannot be written, or a model that does not learn. Extras that are not installed are no fault."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("--skip_training", action="store_true", help="train no model, which takes about 10 seconds")


def main(args: argparse.Namespace) -> int:
    """Print the state of the installation, and each fault; return the exit status."""
    from bertfam.commands import doctor_run

    return doctor_run.run(trains=not args.skip_training)
