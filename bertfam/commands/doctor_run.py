"""Body of `bertfam doctor`: each check returns lines about the state, and faults."""

import importlib
import importlib.metadata
import io
import json
import os
import platform
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement

from bertfam import __version__
from bertfam.commands.table import call
from bertfam.errors import TrainingError, TransientError, UserError
from bertfam.plurals import listed, plural
from bertfam.storage.files import nearest_existing
from bertfam.storage.paths import cache_root

# Imports that fail where a library is there and does not fit the machine; TensorFlow, which takes long, is left out.
_IMPORTS = ("flax", "jax", "ml_dtypes", "numpy", "optax", "orbax.checkpoint", "pyarrow", "safetensors", "sentencepiece")
_MORE_IMPORTS = ("tensorstore", "tokenizers", "zstandard")
_SHOWN = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "tensorstore", "seqio", "tensorflow", "tokenizers")
_FOR_DEVELOPERS = ("benchmarks", "docs", "test")
_LEAST_FREE = 2**30  # bytes of a disk
_WIDTH = 12
_RUN = """\
include "objectives/mlm.gin"
include "runs/defaults.gin"
BATCH_SIZE = 8
CHECKPOINT_EVERY = 80
EVAL_EVERY = 0
MODEL = @BertConfig()
SEED = 0
TRAIN_STEPS = 80
BertConfig.num_layers = 2
BertConfig.hidden_size = 32
BertConfig.num_heads = 2
BertConfig.feed_forward_size = 64
BertConfig.max_length = 32
LinearDecay.peak = 1e-2
LinearDecay.warmup_steps = 10
Run.log_every = 10
Stage.length = 32
Stage.batch_size = 8
Stage.steps = 80
"""
_LEARNT = 0.8  # of the first loss, below which the last one must be


class Check(NamedTuple):
    """Result of a check.

    Attributes:
      name: its name.
      lines: lines about the state.
      faults: lines about faults, each with its fix.
    """

    name: str
    lines: list[str]
    faults: list[str]


def run(*, trains: bool) -> int:
    """Print all checks, each once it is made; return the exit status."""
    faults = 0
    for check in _checks(trains=trains):
        for place, line in enumerate(check.lines):
            print(f"{check.name if not place else '':{_WIDTH}} {line}", flush=True)
        for fault in check.faults:
            print(f"{'BROKEN':{_WIDTH}} {fault}", flush=True)
        faults += len(check.faults)
    print(f"{plural(faults, 'fault')}" if faults else "all is well", flush=True)
    return int(faults > 0)


def _checks(*, trains: bool) -> Iterator[Check]:
    yield Check("bertfam", [f"{__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"], [])
    yield _libraries()
    yield from _extras()
    yield _folders()
    devices = _devices()
    yield devices
    if trains and not devices.faults:
        yield _training()


def _libraries() -> Check:
    """Check the versions of the libraries that bertfam requires, and that they can be imported."""
    lines = [", ".join(f"{name} {version}" for name in _SHOWN if (version := _version(name)))]
    faults = [f"{fault}: pip install --upgrade bertfam" for fault in _unmet("bertfam", "")]
    if _version("bertfam") is None:
        lines.append("bertfam itself is not installed but run from a folder: required versions are not checked")
    for name in (*_IMPORTS, *_MORE_IMPORTS):
        try:
            importlib.import_module(name)
        except Exception as error:  # of a library's own choice
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            faults.append(f"{name} cannot be imported ({reason[:200]}): install it again")
    return Check("libraries", lines, faults)


def _extras() -> Iterator[Check]:
    """Yield the extras that are installed, and the missing packages of the others."""
    if _version("bertfam") is None:
        return
    extras = importlib.metadata.metadata("bertfam").get_all("Provides-Extra") or []
    unmet = {extra: _unmet("bertfam", extra) for extra in extras if extra not in _FOR_DEVELOPERS}
    ready = [extra for extra, lacks in unmet.items() if not lacks]
    yield Check("extras", [f"installed: {', '.join(ready) or 'none'}"], [])
    for extra, lacks in unmet.items():
        if lacks:
            yield Check("", [f"bertfam[{extra}]: {listed(lacks, 3)}"], [])


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _unmet(name: str, extra: str) -> list[str]:
    """Return the requirements of a package that are not met: those of an extra alone, or with "" those of the package."""
    try:
        texts = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    unmet = []
    for text in texts:
        try:
            required = Requirement(text)
        except InvalidRequirement:
            continue
        is_of_extra = "extra ==" in text.partition(";")[2]
        if is_of_extra != bool(extra) or (required.marker and not required.marker.evaluate({"extra": extra})):
            continue
        version = _version(required.name)
        if version is None:
            unmet.append(f"{required.name} is not installed")
        elif not required.specifier.contains(version, prereleases=True):
            unmet.append(f"{required.name} is {version}, and {required.specifier} is required")
        else:
            unmet += [lack for own in required.extras for lack in _unmet(required.name, own)]
    return list(dict.fromkeys(unmet))


def _folders() -> Check:
    """Check that the folders of caches and temporary files can be written, and have free space."""
    import jax

    compiled = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    places = {"this folder": Path.cwd(), "caches": cache_root(), "temporary": Path(tempfile.gettempdir())}
    if compiled and "://" not in compiled:
        places["compiled programs"] = Path(compiled)
    lines, faults = [], []
    for name, folder in places.items():
        nearest = nearest_existing(folder)
        free = shutil.disk_usage(nearest).free
        lines.append(f"{name}: {folder}, {free / 2**30:,.1f} GiB free")
        if not os.access(nearest, os.W_OK | os.X_OK):
            faults.append(f"{nearest} cannot be written by this user")
        if free < _LEAST_FREE:
            faults.append(f"the disk of {folder} is nearly full: free some space")
    return Check("folders", lines, faults)


def _devices() -> Check:
    """Start the devices, and look for an accelerator that JAX does not use."""
    import jax

    from bertfam.sharding.chips import memory_bytes, peak_flops
    from bertfam.training.jax_setup import check_jaxlib

    try:
        devices = jax.devices()
        check_jaxlib(devices[0].platform, jax.lib.__version__)
    except (RuntimeError, UserError) as error:
        reason = " ".join(str(error).split())
        return Check("devices", [], [f"the devices of JAX do not start ({reason[:300]})"])
    first = devices[0]
    memory, flops = memory_bytes(first), peak_flops(first)
    about = f"{len(devices)} x {first.device_kind}, {os.cpu_count()} CPU cores"
    about += f", {memory / 2**30:,.0f} GiB each" if memory else ""
    about += f", {flops / 1e12:,.0f} bfloat16 TFLOP/s each" if flops else ""
    lines = [about]
    if first.platform == "cpu" and "JAX_PLATFORMS" not in os.environ:
        if shutil.which("nvidia-smi"):
            lines.append("this machine has an NVIDIA GPU, which JAX does not use: pip install 'bertfam[cuda]' on Python >= 3.12")
        if list(Path("/dev").glob("accel*")):
            lines.append("this machine has a TPU, which JAX does not use: pip install 'bertfam[tpu]'")
    return Check("devices", lines, [])


def _training() -> Check:
    """Train a small model on made-up sentences, and check that its loss falls."""
    began, log = time.process_time(), io.StringIO()
    with tempfile.TemporaryDirectory(prefix="bertfam-doctor-") as scratch:
        try:
            with redirect_stdout(log), redirect_stderr(log):
                losses = _losses(Path(scratch))
        except (OSError, RuntimeError, TrainingError, TransientError, UserError) as error:
            reason = " ".join(str(error).split())
            return Check("training", [], [f"a small model cannot be trained ({type(error).__name__}: {reason[:300]})"])
    if len(losses) < 2:
        return Check("training", [], [f"a small model was not trained: {' '.join(log.getvalue().splitlines()[-1:])}"])
    spent = time.process_time() - began
    line = f"a model of 2 layers, 80 updates: loss {losses[0]:.2f} to {losses[-1]:.2f}, {spent:.0f} s of CPU time"
    falls = losses[-1] < _LEARNT * losses[0]
    return Check("training", [line], [] if falls else ["the loss does not fall: the devices, or JAX, compute wrongly"])


def _losses(scratch: Path) -> list[float]:
    """Return the losses of training on text of a small grammar, each the mean of some updates."""
    generator = random.Random(0)
    parts = (
        ("the", "a", "every", "no"),
        ("red", "small", "old", "quick"),
        ("cat", "dog", "bird", "fish"),
        ("sees", "finds", "likes", "follows"),
    )
    lines = [" ".join(generator.choice(words) for words in (*parts, *parts[:3])) + "." for _ in range(2000)]
    paragraphs = "\n\n".join("\n".join(lines[start : start + 10]) for start in range(0, len(lines), 10))
    text, vocab, run = scratch / "text.txt", scratch / "vocab", scratch / "run.gin"
    text.write_text(f"{paragraphs}\n", encoding="utf-8")
    run.write_text(_RUN, encoding="utf-8")
    steps = (
        ("vocab", [f"--input={text}", "--size=100", f"--output={vocab}"]),
        # In this process: the run would build it in another one.
        ("cache", [f"--input={text}", f"--vocab={vocab}", f"--output={scratch / 'cache'}", "--processes=0"]),
        ("pretrain", [f"--gin_file={run}", f"--cache_dir={scratch / 'cache'}", f"--model_dir={scratch / 'model'}"]),
    )
    if any(call(name, words) for name, words in steps):
        return []
    written = (scratch / "model" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [line["loss"] for line in map(json.loads, written) if line["split"] == "train"]
