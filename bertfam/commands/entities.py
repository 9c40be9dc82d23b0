"""`bertfam entities`: a folder of the names that a text repeats, with a vector of each, for ERNIE."""

from __future__ import annotations

import argparse

from bertfam.commands import flags
from bertfam.commands.embed import add_encoder, add_settings, check_settings, open_embedder
from bertfam.errors import UserError

SUMMARY = "list the names that a text repeats, with a vector of each, for ERNIE with entities"
EXAMPLE = """\
  bertfam cache --input='text/*.txt' --marks=names --vocab=vocab --output=cache
  bertfam entities --cache_dir=cache --model_dir=word2vec --normalize --output=entities
  bertfam pretrain --gin_file=runs/entity_ernie_base.gin --cache_dir=cache --gin.ENTITIES='"entities"' --model_dir=ernie
Names are the marked entities of the training text that have a letter and occur --min_count times or more. The vector of a name is
its embedding by --model_dir, such as the mean of word2vec's vectors of its words (see runs/word2vec.gin). Names of words that
--model_dir does not know are left out."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "--cache_dir", type=flags.folder, required=True, metavar="DIR", help="token cache of marked text, built with --marks"
    )
    add_encoder(parser, "encoder that embeds the names: folder of a run, or a Hugging Face folder")
    parser.add_argument("--output", type=flags.folder, required=True, metavar="DIR", help="folder to create")
    parser.add_argument("--min_count", type=int, default=5, metavar="N", help="occurrences that a name has at least (default: 5)")
    group = parser.add_argument_group("vectors")
    add_settings(group)
    group.add_argument("--batch_size", type=int, default=32, metavar="N", help="names at a time (default: 32)")


def main(args: argparse.Namespace) -> int:
    """Write the folder; return the exit status."""
    from bertfam.corruption.entity_folder import EntityFolder, with_no_entity, write_entities
    from bertfam.data import vocabularies
    from bertfam.data.entity_counts import count_entities
    from bertfam.data.token_cache.cache import TokenCache
    from bertfam.plurals import plural
    from bertfam.storage.files import check_unused, new_folder
    from bertfam.training.trained_networks import find_step

    check_settings(args)
    if args.min_count < 1:
        raise UserError(f"--min_count={args.min_count} is less than 1")
    check_unused(args.output)
    flags.check_model_dir(args)
    flags.prepare_model(args)
    cache = TokenCache(args.cache_dir)
    vocabulary = vocabularies.load(cache.vocabulary_directory)
    counts = count_entities(cache, vocabulary, args.min_count)
    if not counts:
        raise UserError(
            f"no name with a letter occurs {args.min_count} times in the training text of {args.cache_dir}: lower "
            "--min_count, or mark more names"
        )
    embedder = open_embedder(args, find_step(args.model_dir, flags.step_of(args), average=args.average))
    named = {pieces: vocabulary.decode(pieces) for pieces in counts}
    unknown, encoded = embedder.vocabulary.token_ids.unk, embedder.vocabulary.encode_batch(list(named.values()))
    known = [pieces for pieces, ids in zip(named, encoded, strict=True) if (ids != unknown).any()]
    if not known:
        raise UserError(f"{args.model_dir} knows no word of the {len(named):,} names: name another encoder")
    names = [named[pieces] for pieces in known]
    vectors, _ = embedder.embed(names, args.batch_size)
    with new_folder(args.output) as folder:
        write_entities(
            folder,
            EntityFolder(
                str(args.output),
                vocabulary.size,
                vocabulary.fingerprint,
                tuple(names),
                tuple(known),
                tuple(counts[pieces] for pieces in known),
                with_no_entity(vectors),
            ),
        )
    mentions, width = sum(counts[pieces] for pieces in known), vectors.shape[1]
    print(f"wrote {args.output}: {plural(len(names), 'name')} of {mentions:,} mentions, with vectors of {width} numbers")
    if left_out := len(named) - len(known):
        print(f"left out {plural(left_out, 'name')} of words that {args.model_dir} does not know")
    return 0
