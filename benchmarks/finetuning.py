"""Scores of fine-tuned models over seeds, by bertfam and by torch with transformers, from the same weights and texts.

    python -m benchmarks.finetuning train --init_from=MINILM --data_dir=GLUE --tasks=cola,mrpc --seeds=1,2,3,4,5 --output=RESULTS
    python -m benchmarks.finetuning table --output=RESULTS

Ours are the runs of `bertfam evaluate --suite=glue`. The peer has the same head, batch size, epochs, length and optimizer. A seed
gives each side an order of the texts, a head and dropout of its own. Neither side drops attention weights, which not every
attention of ours does: RESULTS/start is a copy of the folder whose config.json has no such dropout. The medians of a task agree
if each lies between the least and the greatest score of the other side.
"""

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measurement import table
from benchmarks.training_runs import command_parsers, read_scores, run_all, write_scores

_MODULE, _START, _OURS = "benchmarks.finetuning", "start", "ours"
_SETTINGS = {"epochs": 3, "batch_size": 32, "length": 128, "learning_rate": 2e-5}
_ATTENTION_DROPOUT = "attention_probs_dropout_prob"


def train(args: argparse.Namespace) -> None:
    """Fine-tune both sides on every task with every seed."""
    start = args.output / _START
    shutil.copytree(args.init_from, start, dirs_exist_ok=True)
    config = json.loads((start / "config.json").read_text())
    (start / "config.json").write_text(json.dumps(config | {_ATTENTION_DROPOUT: 0.0}, indent=1))
    data = [f"--data_dir={args.data_dir}"]
    settings = [f"--{name}={getattr(args, name)}" for name in _SETTINGS]
    seeds, words = ",".join(map(str, args.seeds)), ["--tasks=" + ",".join(args.tasks)]
    ours = ["bertfam", "evaluate", "--suite=glue", f"--model_dir={start}", f"--seeds={seeds}", f"--output={args.output / _OURS}"]
    jobs = {_OURS: [[*ours, *data, *words, *settings, *args.flags]]}
    for name in (f"{task}_{seed}" for task in args.tasks for seed in args.seeds):
        peer = [_MODULE, "peer", f"--run={name}", f"--device={args.peer_device}", f"--output={args.output}"]
        jobs[name] = [[*peer, *data, *settings]]
    run_all(jobs, args.output, args.gpus)


def peer(args: argparse.Namespace) -> None:
    """Fine-tune the peer on one task with one seed, TASK_SEED, and write its scores."""
    task, _, seed = args.run.rpartition("_")
    folder = args.output / args.run
    folder.mkdir(exist_ok=True)
    write_scores(folder, _peer_scores(args.output / _START, task, int(seed), args))


def _peer_scores(start: Path, task: str, seed: int, args: argparse.Namespace) -> dict[str, float]:
    import numpy as np
    import torch
    import transformers

    from bertfam.finetuning.benchmarks.registry import find
    from bertfam.finetuning.scores import score
    from bertfam.objectives.fine_tuning.heads import Classification, Regression

    files = find(f"glue/{task}").locate(args.data_dir)
    classes = files.task.classes
    tokenizer = transformers.AutoTokenizer.from_pretrained(start)
    torch.manual_seed(seed)
    options = {"num_labels": len(classes) or 1, "dtype": torch.float32}
    model = transformers.AutoModelForSequenceClassification.from_pretrained(start, **options).to(args.device)
    texts, labels = _texts(files.corpus, "train", classes)
    steps = -(-len(texts) // args.batch_size) * args.epochs
    optimizer, schedule = _optimizer(model, args.learning_rate, steps)

    def outputs(rows: Sequence[int]) -> Any:
        own = [texts[row] for row in rows]
        batch = tokenizer(own, truncation="longest_first", max_length=args.length, padding=True, return_tensors="pt")
        with torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda"):
            return model(**batch.to(args.device)).logits.float()

    model.train()
    for _ in range(args.epochs):
        for rows in torch.randperm(len(texts)).split(args.batch_size):
            targets = torch.tensor([labels[row] for row in rows], device=args.device)
            found = outputs(rows.tolist())
            loss = torch.nn.functional.cross_entropy(found, targets) if classes else ((found[:, 0] - targets) ** 2).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
    model.eval()
    texts, labels = _texts(files.corpus, "validation", classes)
    with torch.no_grad():
        parts = torch.arange(len(texts)).split(args.batch_size)
        predicted = np.concatenate([outputs(rows.tolist()).cpu().numpy() for rows in parts])
    head = Classification(classes=tuple(classes)) if classes else Regression()
    found = score(head, predicted, np.array(labels, np.float32)[:, None])
    return {name: found[name] for name in files.task.metrics}


def _optimizer(model: Any, rate: float, steps: int) -> tuple[Any, Any]:
    """Return AdamW and its schedule, with the settings of `bertfam finetune`: warm-up for a tenth, then linear to 0."""
    import torch

    kept = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    decayed = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": kept, "weight_decay": 0.0}]
    optimizer, warmup = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.999), eps=1e-6), max(round(0.1 * steps), 1)

    def factor(step: int) -> float:
        return min(step / warmup, (steps - step) / max(steps - warmup, 1))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def _texts(corpus: Any, split: str, classes: Sequence[str]) -> tuple[list[Any], list[Any]]:
    """Return the texts, or pairs of them, of a split, and their labels."""
    from bertfam.data.corpora.labelled.records import read_records

    texts, labels = [], []
    for path in corpus.files(split):
        options = {"header": corpus.header, "ragged": corpus.ragged}
        for _, record in read_records(path, corpus.input_format, corpus.encoding, **options):
            text = record[corpus.text]
            texts.append((text, record[corpus.text_pair]) if corpus.text_pair else text)
            label = record[corpus.label]
            labels.append(classes.index(label) if classes else float(label))
    return texts, labels


def comparisons(output: Path) -> Iterator[tuple[str, str, dict[str, list[float]]]]:
    """Yield each task and metric, and the scores of both sides by seed."""
    report = json.loads((output / _OURS / "report.json").read_text())
    for name, found in report["tasks"].items():
        task = name.partition("/")[2]
        peers = [scores for _, scores in read_scores(output, [f"{task}_{seed}" for seed in report["seeds"]])]
        (ours,) = found["scores"].values()
        for metric in found["metrics"]:
            yield task, metric, {_OURS: [*ours[metric]["values"].values()], "torch": [scores[metric] for scores in peers]}


def show(args: argparse.Namespace) -> None:
    """Print the table of both sides."""
    lines = []
    for task, metric, sides in comparisons(args.output):
        if not all(sides.values()):
            continue
        agrees = all(min(other) <= statistics.median(own) <= max(other) for own in sides.values() for other in sides.values())
        for side, values in sides.items():
            spread = f"{min(values):.3f} - {max(values):.3f}"
            figures = [str(len(values)), f"{statistics.median(values):.3f}", spread, "yes" if agrees else "no"]
            lines.append([f"{task}, {metric}", side, *figures])
    print(table(["score", "side", "seeds", "median", "range", "medians agree"], lines))


def main() -> int:
    """Run one of the three commands; return the exit status."""
    parser, parsers = command_parsers(__doc__, {"train": train, "peer": peer, "table": show})
    for name in ("train", "peer"):
        add = parsers[name].add_argument
        add("--data_dir", required=True, metavar="DIR", help="folder of GLUE's files")
        for setting, value in _SETTINGS.items():
            add(f"--{setting}", type=type(value), default=value, metavar="N", help="of both sides (default: %(default)s)")
    add = parsers["train"].add_argument
    add("--init_from", type=Path, required=True, metavar="DIR", help="Hugging Face folder of an encoder")
    add("--tasks", type=lambda text: text.split(","), default=["cola", "mrpc"], metavar="NAME,NAME", help="tasks of GLUE")
    add("--seeds", type=lambda text: [*map(int, text.split(","))], default=[1, 2, 3, 4, 5], metavar="N,N", help="seeds")
    add("--gpus", type=lambda text: text.split(","), default=[], metavar="N,N", help="CUDA devices; one named n times has n runs")
    add("--peer_device", choices=("cuda", "cpu"), default="cuda", help="device of the peer (default: %(default)s)")
    add("flags", nargs="*", help="further flags of bertfam evaluate, after --")
    parsers["peer"].add_argument("--run", required=True, help=argparse.SUPPRESS)
    parsers["peer"].add_argument("--device", required=True, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.command(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
