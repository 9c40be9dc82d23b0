"""Plan of a run, printed before training."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np
from flax import linen as nn

from bertfam.features import RowShape
from bertfam.kernels.attention.choice import choices, choose
from bertfam.kernels.attention.interface import Request
from bertfam.layers.execution import Execution
from bertfam.models.encoder import MaskedLmConfig
from bertfam.objectives.objective import Objective
from bertfam.plurals import listed, plural
from bertfam.sharding.chips import peak_flops
from bertfam.training.optimizers.layer_rates import layer_rates
from bertfam.training.run import Run

_SHOWN_CLASSES = 20
_SHOWN_LENGTHS = 8
_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def make_plan(
    run: Run,
    mesh: jax.sharding.Mesh,
    state: Any,
    tensors: Any,
    counts: Mapping[str, Mapping[str, int]],
    flops_per_step: Sequence[int] | None = None,
    reasons: Mapping[str, str] | None = None,
    classes: Mapping[str, int] | None = None,
    row_counts: Sequence[Mapping[int, int]] = (),
) -> dict[str, Any]:
    """Return the plan of a run, a dict that can be written as JSON.

    Args:
      run: the sized run.
      mesh: mesh of its devices.
      state: the TrainState as `jax.ShapeDtypeStruct`s with shardings.
      tensors: description of the parameters (see `optimizers.tensors.describe`).
      counts: number of documents, sentences and tokens by split.
      flops_per_step: FLOPs of an update of each stage; None: those of rows of one example.
      reasons: the reason of each value that was chosen for the devices, by its name in gin files.
      classes: number of training texts, or words, of each class of labelled text.
      row_counts: number of rows of an epoch by their length, of each stage (see `Batches.row_counts`).
    """
    device, optimizer = mesh.devices.flat[0], run.optimizer
    stages = []
    for index, stage in enumerate(run.stages):
        own = row_counts[index] if row_counts else {}
        objective, shape = run.objective_of(index), run.shape(index, max(own, default=None))
        length = np.average([*own], weights=[*own.values()]) if own else stage.length
        stages.append(
            {
                "steps": stage.steps,
                "length": stage.length,
                "batch_size": stage.batch_size,
                "settings": {name: _own_setting(value) for name, value in stage.own_settings.items()},
                "predictions": shape.targets or shape.predictions,
                "tokens_per_step": round(stage.batch_size * length),
                "row_counts": dict(own),
                "flops_per_step": flops_per_step[index]
                if flops_per_step
                else stage.batch_size * run.objective_of(index).flops(shape),
                "attention": describe_attention(objective, shape),
            }
        )
    return {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "trained_parameters": sum(leaf.size for leaf in jax.tree.leaves(run.boxed_trained)),
        "stages": stages,
        "steps": run.total_steps,
        "data": {split: dict(values) for split, values in counts.items()},
        "units": _units(run),
        "optimizer": settings(optimizer),
        "layer_rates": layer_rates(optimizer.layer_decay, tensors, optimizer.layer_count) if optimizer.layer_decay != 1 else {},
        "mesh": dict(mesh.shape),
        "device": device.device_kind,
        "devices": mesh.size,
        "peak_flops_per_device": peak_flops(device),
        "state_bytes_per_device": sum(local_bytes(leaf) for leaf in jax.tree.leaves(state._replace(aux={}))),
        "aux_bytes_per_device": {name: sum(map(local_bytes, jax.tree.leaves(tree))) for name, tree in state.aux.items()},
        "microbatches": run.microbatch_count,
        "execution": execution_settings(run),
        "reasons": dict(reasons or {}),
        "classes": dict(classes or {}),
    }


def _own_setting(value: Any) -> str:
    """Format a setting of a stage; an objective without the execution, which is that of the run."""
    if isinstance(value, Objective):
        value = dataclasses.replace(cast(Any, value), execution=Execution())
    return ", ".join(value) if isinstance(value, tuple) else settings(value)


def _units(run: Run) -> dict[str, str]:
    """Return the noun of each count of the data: labelled text and pairs are not made of documents and sentences."""
    corruption = run.data.corruption
    if corruption.labels_words:
        return {"document": "sentence", "sentence": "word", "token": "token"}
    if corruption.labels:
        return {"document": corruption.labelled_unit, "token": "token"}
    if run.data.corpora and all(corpus.pairs for corpus in run.data.corpora.values()):
        return {"document": "pair", "token": "token"}
    return {"document": "document", "sentence": "sentence", "token": "token"}


def _parameters_text(count: int, trained: int) -> str:
    """Format the number of parameters: 1,234, or 1,234, of which 56 (4.54 %) are trained."""
    return f"{count:,}" if trained == count else f"{count:,}, of which {trained:,} ({100 * trained / count:.3g} %) are trained"


def _class_text(classes: Mapping[str, int]) -> str:
    """Format the number of texts of each class: 3: bad (12), fair (7), good (9)."""
    return f"{len(classes):,}: {listed((f'{name} ({count:,})' for name, count in classes.items()), _SHOWN_CLASSES)}"


def execution_settings(run: Run) -> dict[str, Any]:
    """Return how a run is computed, by names in gin files; attention is chosen for each stage."""
    execution = dataclasses.asdict(run.objective.execution.concrete)
    values = {f"Execution.{name}": value for name, value in execution.items() if name != "attention"}
    return values | {"Run.microbatches": run.microbatch_count}


def execution_text(execution: Mapping[str, Any], reasons: Mapping[str, str]) -> str:
    """Format how a run is computed, and why: dtype float32, layers scan (cpu), remat full, microbatches 2."""
    groups = itertools.groupby(execution, key=lambda name: reasons.get(name, ""))
    texts = []
    for reason, names in groups:
        values = ", ".join(f"{name.rpartition('.')[2]} {execution[name]}" for name in names)
        texts.append(f"{values} ({reason})" if reason else values)
    return ", ".join(texts)


_NO_ATTENTION = "none"


def describe_attention(objective: Objective, shape: RowShape) -> str:
    """Describe the attention backend of training on this process's devices and its reason, by network where they differ."""
    networks = dict(objective.networks)
    if objective.teachers:
        (student,) = networks.values()
        teachers = {name: teacher.model for name, teacher in objective.teachers.items() if teacher is not None}
        networks = {"student": student} | teachers
    if not all(getattr(config, "patterns", ()) for config in networks.values()):
        return _traced_attention(objective, shape)
    shape = objective.sequence_shape(shape)
    texts = {name: _encoder_attention(config, objective.execution, shape) for name, config in networks.items()}
    return _once_or_by_name(texts, ": ")


def _encoder_attention(config: MaskedLmConfig, execution: Execution, shape: RowShape) -> str:
    dropout = config.attention_dropout_rate
    length = shape.length + getattr(config, "num_extra_tokens", 0)
    request = Request(execution.concrete.dtype, length, config.head_dim, packed=shape.examples > 1, dropout_rate=dropout)
    requests = dict.fromkeys(dataclasses.replace(request, pattern=pattern).here() for pattern in config.patterns)
    reasons = {_attended(request): choose(request, execution.attention)[1] for request in requests}
    return _once_or_by_name(reasons, ", ")


def _traced_attention(objective: Objective, shape: RowShape) -> str:
    return _once_or_by_name({_attended(request): reason for request, reason in attention_requests(objective, shape)}, ", ")


def attention_requests(objective: Objective, shape: RowShape) -> list[tuple[Request, str]]:
    """Return the attention requests of a training step with the reason for each choice, one for each layer that is traced."""
    # No choice depends on the number of rows.
    shape = shape._replace(rows=1)
    batch = {name: jax.ShapeDtypeStruct((1, *spec.shape), spec.dtype) for name, spec in objective.features(shape).items()}
    key = jax.eval_shape(lambda: jax.random.key(0))
    trees = jax.eval_shape(lambda key: nn.meta.unbox(objective.init(key, shape)), key)
    with choices() as chosen:
        jax.eval_shape(
            lambda key, params, carry, aux, batch: objective.loss(params, carry, aux, batch, key=key, train=True).terms,
            key,
            *trees,
            batch,
        )
    return chosen


def _attended(request: Request) -> str:
    """Describe the tokens that an attention request covers."""
    if request.key_length is not None:
        return "over the encoder's output"
    return f"over {request.pattern.describe()}"


def _once_or_by_name(texts: Mapping[str, str], separator: str) -> str:
    if len(set(texts.values())) < 2:
        return next(iter(texts.values()), _NO_ATTENTION)
    return "; ".join(f"{name}{separator}{text}" for name, text in texts.items())


def settings(config: Any) -> str:
    """Format a frozen config, nested ones included, without default values: Lamb(schedule=LinearDecay(peak=0.002))."""
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        return repr(config)
    fields = [(field, getattr(config, field.name)) for field in dataclasses.fields(config)]
    shown = [f"{field.name}={settings(value)}" for field, value in fields if field.default != value or field.name == "schedule"]
    return f"{type(config).__name__}({', '.join(shown)})"


def local_bytes(leaf: jax.ShapeDtypeStruct) -> int:
    """Return the bytes of an array on each device."""
    assert leaf.sharding is not None
    return int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize


def plan_text(plan: Mapping[str, Any]) -> str:
    """Format the plan as text."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in plan["mesh"].items() if size > 1)
    lines = [
        f"parameters   {_parameters_text(plan['parameters'], plan['trained_parameters'])}",
        f"devices      {plan['devices']} x {plan['device']}{mesh and f', mesh {mesh}'}",
        f"state        {plan['state_bytes_per_device'] / 2**20:,.1f} MiB on each device (parameters and optimizer)",
    ]
    if several := plan.get("processes"):
        hosts = several["hosts"]
        lines.append(
            f"processes    {len(hosts)} on {plural(len(set(hosts)), 'host')} ({several['source']}); process 0 is on {hosts[0]}"
        )
    lines.append(f"execution    {execution_text(plan['execution'], plan['reasons'])}")
    for name, size in plan["aux_bytes_per_device"].items():
        lines.append(f"{name:<12} {size / 2**20:,.1f} MiB on each device (neither trained nor saved)")
    for split, counts in plan["data"].items():
        texts = (plural(counts[f"{noun}s"], name) for noun, name in plan["units"].items())
        lines.append(f"{split:<12} " + ", ".join(texts))
    if classes := plan.get("classes"):
        lines.append(f"classes      {_class_text(classes)}")
    for index, stage in enumerate(plan["stages"]):
        shortest, longest = (end(stage["row_counts"], default=stage["length"]) for end in (min, max))
        lines.append(
            f"stage {index + 1}      {plural(stage['steps'], 'step')} of {plural(stage['batch_size'], 'row')} x "
            f"{shortest if shortest == longest else f'{shortest} to {longest}'} tokens"
            + (f" ({stage['predictions']} predicted)" if stage["predictions"] else "")
            + f": {stage['tokens_per_step']:,} tokens and "
            f"{si(stage['flops_per_step'])}FLOP a step"
            + (f", in {plan['microbatches']} microbatches" if plan["microbatches"] > 1 else "")
        )
        if counts := stage["row_counts"]:
            sizes = listed((f"{length} tokens ({plural(count, 'row')})" for length, count in counts.items()), _SHOWN_LENGTHS)
            batches = sum(counts.values()) / stage["batch_size"]
            lines.append(f"lengths      {sizes}; {batches:,.4g} batches an epoch, each of rows of similar length")
        lines += [f"{name:<12} {value}" for name, value in stage["settings"].items()]
        lines.append(f"attention    {stage['attention']}")
    lines.append(f"optimizer    {plan['optimizer']}")
    if plan["layer_rates"]:
        lines.append("layer rates  " + ", ".join(f"{name} x {share:.4g}" for name, share in plan["layer_rates"].items()))
    return "\n".join(lines)


def si(value: float) -> str:
    """Format a number with three digits and an SI prefix: 12.3 G."""
    for size, prefix in _UNITS:
        if value >= size:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.3g} "


def duration(seconds: float) -> str:
    """Format seconds: 1 h 02 min, 3 min 05 s, 12 s."""
    total = round(seconds)
    if total >= 3600:
        return f"{total // 3600} h {total % 3600 // 60:02d} min"
    return f"{total // 60} min {total % 60:02d} s" if total >= 60 else f"{total} s"
