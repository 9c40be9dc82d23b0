"""Mutation tests: forty faults, each put alone into a copy of the package, where the named test file must fail.

    python tests/mutants.py            # runs all of them, two at a time, in about a quarter of an hour
    python tests/mutants.py order adam # runs those whose file has one of these words in its path

`make mutants` runs all. tests/test_mutants.py checks that every fault still applies to the code as it stands.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from bertfam.arguments import ScriptParser

ROOT = Path(__file__).parents[1]
TIMEOUT_SECONDS = 600


class Mutant(NamedTuple):
    """A fault.

    Attributes:
      file: path under bertfam/.
      original: text that occurs exactly once in the file.
      mutated: text that replaces it.
      test: arguments of pytest, under tests/, which must fail.
    """

    file: str
    original: str
    mutated: str
    test: str


STEP = "training/test_step.py"
OPTIMIZERS = "training/test_optimizers.py"
MUTANTS = (
    # The step: denominators, microbatches, dropout, skipped updates, averages
    Mutant(
        "training/step.py",
        "denominators = objective.denominators(batch)\n\n        def piece",
        "denominators = {name: value * 2 for name, value in objective.denominators(batch).items()}\n\n        def piece",
        STEP,
    ),
    Mutant("training/step.py", "jax.tree.map(jnp.add, sums, (gradient, metrics))", "(gradient, metrics)", STEP),
    Mutant("training/step.py", "DROPOUT), state.step)", "DROPOUT), 0)", STEP),
    Mutant(
        "training/step.py", "jnp.where(finite, new, old), changed, state)", "new, changed, state)", "training/test_trainer.py"
    ),
    Mutant("training/step.py", "(1 - decay) / one_minus_power(decay, updates)", "1 - decay", "training/test_trainer.py"),
    # Optimizers and schedules
    Mutant("training/optimizers/moments.py", "count = state.updates + 1", "count = state.updates + 2", OPTIMIZERS),
    Mutant("training/optimizers/moments.py", "(jnp.sqrt(v / second) + epsilon)", "jnp.sqrt(v / second + epsilon)", OPTIMIZERS),
    Mutant("training/optimizers/lamb.py", "axis=tensor.own, keepdims", "axis=None, keepdims", OPTIMIZERS),
    Mutant(
        "training/optimizers/adam.py",
        "return self._direction(tensors, corrected=False)",
        "return self._direction(tensors, corrected=True)",
        OPTIMIZERS,
    ),
    Mutant(
        "training/schedules.py",
        "(total - done) / max(total - start, 1)",
        "(total - done) / max(total, 1)",
        "training/test_schedules.py",
    ),
    Mutant("training/schedules.py", "end, xp))) / 2", "end, xp)))", "training/test_schedules.py"),
    # Order, packing, pairs, mixtures
    Mutant("data/rows/order.py", "keys.fold(self.key, epochs)", "keys.fold(self.key, 0 * epochs)", "data/rows/test_order.py"),
    Mutant("data/rows/order.py", "np.maximum(rows - longer, 0)", "np.maximum(rows - longer - 1, 0)", "data/rows/test_order.py"),
    Mutant("data/rows/packing.py", "(nth + 1).astype(np.int32)", "(0 * nth + 1).astype(np.int32)", "data/rows/test_packing.py"),
    Mutant(
        "data/rows/packing.py",
        "offset = begin - np.repeat(begin[np.cumsum(count) - count], count)",
        "offset = begin",
        "data/rows/test_packing.py",
    ),
    Mutant("data/rows/sentence_pairs.py", "other += other >= own", "other += other > own", "data/rows/test_sentence_pairs.py"),
    Mutant(
        "data/rows/sentence_pairs.py",
        "[is_random + 2 * is_swapped]",
        "[0 * is_random + 2 * is_swapped]",
        "data/rows/test_sentence_pairs.py",
    ),
    Mutant(
        "data/rows/sentence_pairs.py",
        "(after_a & real).astype(np.int32)",
        "after_a.astype(np.int32)",
        "data/rows/test_sentence_pairs.py",
    ),
    Mutant("data/rows/sentence_pairs.py", "keys.fold(epoch_keys, chunk)", "row_keys", "data/rows/test_sentence_pairs.py"),
    Mutant("data/text_data.py", "batches.place(steps)", "0", "data/rows/test_stage_orders.py"),
    Mutant("data/rows/mixture.py", "before[within]", "0 * before[within]", "data/rows/test_mixture.py"),
    # Noise
    Mutant(
        "corruption/masked_lm/replacement.py",
        "action < mask_share + random_share",
        "action < mask_share + 2 * random_share",
        "corruption/masked_lm/test_masking.py",
    ),
    Mutant(
        "corruption/masked_lm/replacement.py",
        "targets = original.take(flat_positions(chosen.positions, original.shape[1]))",
        "targets = original.take(flat_positions(chosen.positions * 0, original.shape[1]))",
        "corruption/masked_lm/test_masking.py",
    ),
    Mutant(
        "corruption/masked_lm/budgets.py",
        "np.maximum(1, rounded",
        "np.maximum(0, rounded",
        "corruption/masked_lm/test_electra_masking.py",
    ),
    Mutant("corruption/keys.py", "np.uint64) * _GOLDEN\n", "np.uint64) * np.uint64(0)\n", "corruption/test_keys.py"),
    Mutant(
        "corruption/t5/span_formats.py",
        "_to_sentinels(raw.tokens, raw.noise, raw.real, tokens)",
        "_to_sentinels(raw.tokens, raw.real & ~raw.noise, raw.real, tokens)",
        "corruption/t5/test_span_corruption.py",
    ),
    Mutant(
        "corruption/bart/infilling.py",
        "inserts = used & (lengths == 0)",
        "inserts = used & (lengths == 1)",
        "corruption/bart/test_infilling.py",
    ),
    # Layers and kernels
    Mutant("kernels/split_heads.py", "first * cos - second * sin", "first * cos + second * sin", "layers/test_rotary.py"),
    Mutant(
        "layers/norm.py",
        "wide = wide - jnp.mean(wide, axis=-1, keepdims=True)",
        "wide = wide + 0.0",
        "layers/test_small_layers.py",
    ),
    Mutant(
        "layers/heads/pretraining.py",
        "< vocab_size, logits, NO_TOKEN_LOGIT)",
        "<= vocab_size, logits, NO_TOKEN_LOGIT)",
        "models/test_t5_parity.py",
    ),
    Mutant(
        "layers/lookup.py",
        "jnp.any(here, axis=1), written, tokens)",
        "jnp.any(here, axis=1), tokens, written)",
        "objectives/test_electra.py",
    ),
    # Objectives
    Mutant(
        "objectives/objective.py",
        "picked = jnp.sum(jnp.where(classes == targets[..., None], logits, 0.0), axis=-1)",
        "picked = jnp.sum(jnp.where(classes == targets[..., None] + 1, logits, 0.0), axis=-1)",
        "objectives/test_mlm_nsp.py",
    ),
    Mutant(
        "objectives/objective.py",
        "(jax.nn.softplus(logits) - labels * logits) * weights",
        "jax.nn.softplus(logits) - labels * logits",
        "objectives/test_electra.py",
    ),
    Mutant("objectives/electra.py", "(drawn != targets)", "(drawn == targets)", "objectives/test_electra.py"),
    Mutant(
        "objectives/pairs.py",
        'gather_positions(hidden, batch["sequence_start_positions"])',
        "hidden[:, :1]",
        "objectives/test_packed_rows.py",
    ),
    Mutant(
        "objectives/student/terms.py",
        "1 - jnp.sum(ours * theirs, axis=-1)",
        "2 - jnp.sum(ours * theirs, axis=-1)",
        "objectives/test_distillation.py",
    ),
    Mutant(
        "objectives/language_model.py",
        '{"lm": jnp.sum(batch["decoder_loss_weights"])}',
        '{"lm": jnp.sum(batch["decoder_loss_weights"] * 0 + 1)}',
        "objectives/test_language_models.py",
    ),
    # Models and their Hugging Face tables
    Mutant("models/bert.py", 'attention.self.{name}")', 'attention.self.key")', "models/test_bert_parity.py"),
    Mutant("models/gpt2.py", '"conv1d", part_of=(place, 3)', '"conv1d", part_of=(2 - place, 3)', "models/test_decoder_parity.py"),
    Mutant("models/t5.py", '"wi_0" if config.gated', '"wi_1" if config.gated', "models/test_t5_parity.py"),
    # Checkpoints and processes
    Mutant(
        "training/checkpoints/manifest.py", 'if digest != entry["sha256"]:', "if False:", "training/test_damaged_checkpoints.py"
    ),
    Mutant(
        "training/checkpoints/selection.py",
        "contents=True, items=items, report=True)\n        if fault is None",
        "contents=False, items=items, report=True)\n        if fault is None",
        "training/test_damaged_checkpoints.py",
    ),
    Mutant(
        "multihost/processes.py", "if theirs != mine and self.first:", "if False and self.first:", "multihost/test_distributed.py"
    ),
)


def mutate(package: Path, mutant: Mutant) -> None:
    """Put a fault into a copy of the package; raise ValueError unless its original text occurs exactly once."""
    path = package / mutant.file
    text = path.read_text()
    if text.count(mutant.original) != 1:
        raise ValueError(f"{mutant.file} has {text.count(mutant.original)} times {mutant.original!r}; update tests/mutants.py")
    path.write_text(text.replace(mutant.original, mutant.mutated))


def is_caught(mutant: Mutant) -> bool:
    """Run the test of a fault against a copy of the package that has it; return True if the test fails."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("bertfam", "gin_configs", "tests"):
            shutil.copytree(ROOT / name, Path(scratch) / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "setup.py"):
            shutil.copy(ROOT / name, scratch)
        mutate(Path(scratch) / "bertfam", mutant)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", *mutant.test.split()]
        tests = Path(scratch) / "tests"
        environment = os.environ | {"PYTHONPATH": scratch}
        done = subprocess.run(command, cwd=tests, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{mutant.test} did not run: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 1


def main(words: list[str]) -> int:
    """Run the faults whose file has one of the words in its path, or all; return 1 if any was not caught."""
    parser = ScriptParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="run only the faults of files with one of these in their paths")
    words = parser.parse_args(words).words
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.file for word in words)]
    if not chosen:
        parser.error(f"no fault is in a file with {' or '.join(words)} in its path")
    missed = 0
    with ThreadPoolExecutor(2) as pool:
        for mutant, caught in zip(chosen, pool.map(is_caught, chosen), strict=True):
            missed += not caught
            print(f"{'caught' if caught else 'MISSED'}  {mutant.file}: {mutant.mutated}  ({mutant.test})", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} faults caught")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
