"""Facts about the training of a model, from the files of its MODEL_DIR, for people who get the model alone."""

from pathlib import Path
from typing import Any

from bertfam.plurals import plural
from bertfam.storage.paths import to_path
from bertfam.storage.untrusted import read_json
from bertfam.training.integrity.model_dir_files import FINGERPRINT
from bertfam.training.logs import metrics_file

_FILES = 5  # that are named
_LENGTH = 60  # characters of a name


def training_facts(model_dir: str | Path, step: int) -> dict[str, str]:
    """Return what a model was trained on, how long, and its last held-out scores until a step, by name.

    A part whose file is missing is left out.

    Raises:
      UserError: a file is damaged.
    """
    folder = to_path(model_dir)
    facts = {}
    if (path := folder / FINGERPRINT).is_file() and (data := _data(read_json(path))):
        facts["training data"] = data
    seen: dict[str, Any] = {}
    scores: dict[str, Any] = {}
    scored = 0
    for line in metrics_file.read(folder / "metrics.jsonl"):
        if line.step <= step and line.split == "train":
            seen = line.values
        if line.step <= step and line.split == "eval":
            scores, scored = line.values, line.step
    tokens, epoch = seen.get("tokens_seen"), seen.get("epoch")
    of_tokens = f", {plural(int(tokens), 'token')}" if isinstance(tokens, int | float) else ""
    of_epochs = f", {epoch:.3g} epochs" if isinstance(epoch, int | float) else ""
    facts["training"] = f"{plural(step, 'update')}{of_tokens}{of_epochs}"
    numbers = [
        f"{name} {value:.4f}" for name, value in scores.items() if isinstance(value, float) and name not in ("step", "split")
    ]
    if numbers:
        facts[f"held-out scores at step {scored:,}"] = ", ".join(numbers)
    return facts


def _data(fingerprint: dict[str, Any]) -> str:
    """Name the corpora of a fingerprint, with the names of their training files without folders."""
    corpora = fingerprint.get("corpora")
    parts = []
    for name, corpus in (corpora if isinstance(corpora, dict) else {}).items():
        files = corpus.get("train") if isinstance(corpus, dict) else None
        names = [str(file["name"])[:_LENGTH] for file in files or () if isinstance(file, dict) and "name" in file]
        kind = str(corpus.get("name") or corpus.get("kind") or "") if isinstance(corpus, dict) else ""
        listed = ", ".join(names[:_FILES]) + (f" and {len(names) - _FILES:,} more" if len(names) > _FILES else "")
        parts.append(f"{str(name)[:_LENGTH]}: {listed or kind[:_LENGTH]}")
    return "; ".join(parts)
