"""`bertfam index`: an index of passages, for `bertfam retrieve`."""

from __future__ import annotations

import argparse

from bertfam.commands import embed, flags
from bertfam.commands.finetune import add_records, check_format, text_files
from bertfam.errors import UserError
from bertfam.interop.folders import huggingface_towers

SUMMARY = "embed passages into an index, for retrieve"
EXAMPLE = """\
  bertfam index --model_dir=minilm --input=passages.tsv --output=index
  bertfam retrieve --index=index "Who wrote the Iliad?"
  bertfam finetune --retrieval --init_from=model --train=train-v1.1.json --model_dir=dpr
  bertfam index --model_dir=dpr --input=dev-v1.1.json --output=dpr-index
  bertfam evaluate --index=dpr-index --questions=dev-v1.1.json --baselines
The index has the vectors and the texts of the passages, in shards. The same command again resumes after an interruption."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    embed.add_encoder(
        parser, "folder of a run, or a Hugging Face folder; of two networks named query and passage each embeds its own texts"
    )
    group = parser.add_argument_group("passages")
    group.add_argument(
        "--input",
        type=flags.files,
        action="append",
        default=[],
        required=True,
        metavar="GLOB",
        help="files with a column of passages, or .json files of SQuAD's format, whose passages are the contexts; repeatable",
    )
    group.add_argument("--text", default="text", metavar="COLUMN", help="column of the passage (default: text)")
    add_records(group)
    group = parser.add_argument_group("index")
    group.add_argument("--output", type=flags.path, required=True, metavar="DIR", help="folder of the index")
    embed.add_settings(group)
    group.add_argument("--batch_size", type=int, default=32, metavar="N", help="passages at a time (default: 32)")
    group.add_argument(
        "--shard_size", type=int, default=4096, metavar="N", help="passages between two writes, a shard (default: 4096)"
    )
    flags.add_processes(parser)


def main(args: argparse.Namespace) -> int:
    """Build the index; return the exit status."""
    embed.check_settings(args)
    if args.shard_size < 1:
        raise UserError(f"--shard_size={args.shard_size} is less than 1")
    check_format(args, "texts")
    if not huggingface_towers(args.model_dir):
        flags.check_model_dir(args)

    from bertfam.multihost.startup import join

    with join(args.coordinator, args.num_processes, args.process_index, args.initialization_timeout, args.output) as processes:
        from bertfam.embedding.passage_index import build_index, plan_index
        from bertfam.embedding.towers import TowerSettings, open_towers
        from bertfam.plurals import plural

        corpus = text_files(args, args.input)
        flags.prepare_model(args)
        settings = TowerSettings(args.pooling, args.normalize or None, args.length)
        towers = open_towers(args.model_dir, settings, step=flags.step_of(args), average=args.average)
        index = plan_index(args.output, towers, corpus, args.shard_size)
        processes.on_first("the description of the index", index.create)
        missing = len(index.missing())
        of_shards = f"{plural(index.passages, 'passage')} in {plural(index.shards, 'shard')}, {missing} to compute"
        print(f"{of_shards}; vectors of {index.width} numbers ({towers.passage.settings.description})")
        share = {"process": processes.index, "processes": max(1, len(processes.hosts))}
        cut = sum(processes.gather("its share of the index", build_index(index, towers, corpus, args.batch_size, **share)))
        index.check_complete()
        print(f"wrote {args.output}")
        if cut:
            fix = "divide them, or raise --length if the model allows it"
            print(f"{plural(cut, 'passage')} cut after {towers.passage.length} tokens: {fix}")
    return 0
