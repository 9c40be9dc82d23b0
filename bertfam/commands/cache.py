"""`bertfam cache`: tokenisation of a corpus into a token cache."""

import argparse

from bertfam.commands import flags
from bertfam.errors import UserError, warn
from bertfam.storage.files import check_unused, is_used
from bertfam.storage.paths import to_path

SUMMARY = "tokenise a corpus once, into a token cache"
EXAMPLE = """\
  test -d vocab || bertfam vocab --task=python_docs --size=8192 --output=vocab
  bertfam cache --task=python_docs --vocab=vocab --output=cache
  bertfam pretrain --gin_file=runs/quickstart.gin --cache_dir=cache --model_dir=model
The cache is complete or absent. A build that is stopped (killed, interrupted, out of disk or memory) leaves its work in
.NAME.partial beside --output=NAME. The same command resumes it there, with the same bytes as an uninterrupted build. Other text
or another vocabulary starts from the beginning. To abandon a build, delete .NAME.partial.
Each block of a cache is checked when it is first read. To check all of them at once:
  bertfam cache --verify --output=cache"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    flags.add_config(parser)
    flags.add_text(parser)
    parser.add_argument(
        "--output",
        type=flags.folder,
        required=True,
        metavar="DIR",
        help="folder of the cache; an existing one is checked against the text and vocabulary",
    )
    flags.add_workers(parser, "split sentences and tokenise")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read every byte of the cache in --output and compare it with its digests, instead of building; takes no flags of "
        "text or vocabulary",
    )


def main(args: argparse.Namespace) -> int:
    """Build the cache, check an existing one against the text and vocabulary, or verify it; return the exit status."""
    if args.verify:
        _check_verify(args)
        from bertfam.data.token_cache.verification import verify

        print(verify(args.output))
        return 0
    from bertfam.data.token_cache.build_process import check_buildable

    flags.check_workers(args)
    output = to_path(args.output)
    is_built = is_used(output) and (output / "cache.json").is_file()
    if not is_built:
        check_unused(output)
    data = flags.load_config(args, reads_text=True).build("TextData")
    if args.alpha is not None:
        raise UserError(
            "--alpha says how many rows and words each language gives, and a token cache holds all of each: leave it out here, "
            "and give it to bertfam vocab and bertfam pretrain"
        )
    check_buildable(data)

    from bertfam.data import vocabularies
    from bertfam.data.checks.diagnosis import cache_warnings
    from bertfam.data.token_cache import builder
    from bertfam.data.token_cache.build_folder import clear_finished
    from bertfam.data.token_cache.cache import TokenCache
    from bertfam.subprocesses import cores

    vocabulary = vocabularies.load(data.vocabulary)
    if is_built:
        builder.check_sources(TokenCache(output), data.corpora, vocabulary)
        clear_finished(output)
        print(f"token cache: {output}, built already")
        return 0
    least = data.rows.least_documents
    if args.beam is None:
        processes = cores() if args.processes is None else args.processes
        builder.build(data.corpora, vocabulary, output, least_documents=least, processes=processes)
    else:
        import shlex

        from bertfam.data.token_cache import beam

        beam.build(data.corpora, vocabulary, output, shlex.split(args.beam), least_documents=least)
    warn(cache_warnings(TokenCache(output), vocabulary, to_path(data.vocabulary)))
    print(f"token cache: {output}")
    return 0


def _check_verify(args: argparse.Namespace) -> None:
    """Refuse the flags that --verify would not use, so that nobody takes its answer for a comparison with the text."""
    building = ("input", "language_input", "task", "validation_input", "vocab", "gin_file", "processes", "beam")
    for flag in building:
        if getattr(args, flag) not in (None, []):
            raise UserError(
                f"--{flag} does not go with --verify, which compares the cache with its own digests; leave --{flag} out, or "
                "leave --verify out to compare the cache with the text and vocabulary"
            )
