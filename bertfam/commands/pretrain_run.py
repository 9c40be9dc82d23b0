"""Body of `bertfam pretrain`: opens the run, prints its plan, makes its folder and trains it."""

import argparse
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax

from bertfam import session
from bertfam.commands import flags, init_flags
from bertfam.commands.init_flags import InitFlags
from bertfam.config import Defaults
from bertfam.data.checks.diagnosis import cache_warnings
from bertfam.data.corpora.corpus import SPLITS
from bertfam.data.token_cache.build_process import open_token_cache
from bertfam.data.token_cache.cache import TokenCache
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError, printable, warn
from bertfam.finetuning.class_counts import class_counts, constant_warnings
from bertfam.finetuning.sweep import kept_scores
from bertfam.multihost import preemption
from bertfam.multihost.processes import Processes
from bertfam.multihost.same_code import check_modules
from bertfam.plurals import plural
from bertfam.storage import locks
from bertfam.storage.files import is_used
from bertfam.storage.paths import to_path
from bertfam.training import loop, watchdog
from bertfam.training.checkpoints import Checkpoints, cleanup, retention, selection
from bertfam.training.evaluations.hook import DOWNSTREAM, DownstreamHook, open_evaluations
from bertfam.training.hooks.base import Hook
from bertfam.training.hooks.profile import ProfileHook, profiled_steps
from bertfam.training.hooks.standard import make_hooks
from bertfam.training.jax_setup import enable_compilation_cache
from bertfam.training.logs import starts
from bertfam.training.logs.metrics import MetricsWriter, NoMetrics, Writer
from bertfam.training.logs.phase_timer import PREPARING, SAVING, PhaseTimer, shares
from bertfam.training.logs.progress import ProgressLog
from bertfam.training.logs.stragglers import StragglerMonitor
from bertfam.training.model_dir import prepare_folder, saved_init_flags, with_own_vocabularies
from bertfam.training.run import Run
from bertfam.training.run_checks import check_text, run_warnings
from bertfam.training.run_plan import duration, make_plan, plan_text
from bertfam.training.stages import StagedBatches, seen
from bertfam.training.state import TrainState
from bertfam.training.teachers import LoadedTeacher
from bertfam.training.trainer import Trainer
from bertfam.training.warm_start.branch import Branch
from bertfam.training.warm_start.parameters import WarmStart
from bertfam.training.warm_start.source import open_source


@dataclass(frozen=True)
class Job:
    """Everything that a run keeps open while it trains. It holds no parameters: `InitialState` does.

    Attributes:
      processes: the processes that train it together.
      configuration: its configuration.
      vocabulary: its vocabulary.
      checkpoint: the checkpoint that it starts from.
      init: the flags of its warm start, those of the command or those that MODEL_DIR remembers.
      branch: the checkpoint of another run that it goes on from; None if it does not, or resumes.
      trainer: its programs on the mesh.
      cache: its token cache.
      data: its batches.
      evaluations: the hook of `Run.evaluations`, if there are any.
      profiled: the first and the last update to profile.
      reasons: the reason of each value that was chosen for the devices, by its name in gin files.
    """

    processes: Processes
    configuration: session.TrainingConfiguration
    vocabulary: session.OpenVocabulary
    checkpoint: session.Checkpoint
    init: InitFlags
    branch: Branch | None
    trainer: Trainer
    cache: TokenCache
    data: session.RunData
    evaluations: list[DownstreamHook]
    profiled: tuple[int, int] | None
    reasons: dict[str, str]

    @property
    def run(self) -> Run:
        """The sized run."""
        return self.trainer.run

    @property
    def model_dir(self) -> Path:
        """The folder of the run."""
        return self.configuration.model_dir


@dataclass(frozen=True)
class InitialState:
    """Parameters that a run starts from, in host memory.

    Attributes:
      warm_start: the parameters of another model; None if the run resumes, or starts from an imported or a new model.
      aux: what the objective reads and does not train.
    """

    warm_start: WarmStart | None
    aux: dict[str, Any]

    def place(self, job: Job, checkpoints: Checkpoints) -> TrainState:
        """Make the first state on the devices."""
        step = job.checkpoint.step
        if job.branch:
            state = job.branch.state(job.trainer)
        elif self.warm_start:
            state = self.warm_start.state(job.trainer)
        elif step is None:
            state = job.trainer.new_state()
        elif job.checkpoint.resumes:
            state = job.trainer.restored(checkpoints, step)
            print(f"resumed from step {step:,}", flush=True)
        else:
            state = job.trainer.from_imported(checkpoints, step)
            print(f"started from the model in {job.model_dir}", flush=True)
        return job.trainer.with_aux(state, self.aux)


@dataclass(frozen=True)
class Outputs:
    """Places that a run writes to while it trains, and its request to stop."""

    checkpoints: Checkpoints
    writer: Writer
    profile: ProfileHook
    stop: preemption.Stop


def run(args: argparse.Namespace, processes: Processes, teacher: session.Teacher | None = None) -> int:
    """Train; return the exit status. However training ends, a checkpoint that was started is complete before this returns."""
    job, initial = _open(args, processes, teacher)
    evaluated = _written_scores(job, "eval")
    for hook in job.evaluations:
        hook.done.update(_written_scores(job, DOWNSTREAM))
    if _is_finished(job, evaluated):
        return 0
    plan = _print_plan(args, job, initial)
    _make_folder(job, plan, getattr(args, "command_line", ()))
    with _open_outputs(job, plan) as outputs:
        with outputs.stop.nothing_to_save():
            state = initial.place(job, outputs.checkpoints)
        del initial  # The parameters are on the devices now, so the host's copies are freed.
        step, hooks, seconds = _train(job, state, outputs, evaluated)
    print(
        f"{plural(step - job.checkpoint.first_step, 'update')} in {duration(sum(seconds.values()))}: {shares(seconds)}",
        flush=True,
    )
    reason = next(filter(None, (hook.end_reason(step) for hook in hooks)), None)
    if reason is None and (step < job.run.total_steps or any(hook.owed(step) for hook in hooks)):
        print(f"stopped after step {step:,} of {job.run.total_steps:,}, which is saved; the same command resumes it", flush=True)
        return preemption.EXIT_CODE
    if reason and step < job.run.total_steps:
        print(f"ended after step {step:,} of {job.run.total_steps:,}: {reason}", flush=True)
    if job.processes.first and job.run.keep_best:
        _print_best(job)
    print(f"finished: {job.model_dir}", flush=True)
    if job.processes.first:
        warn(constant_warnings(job.run, job.cache, kept_scores(job.model_dir)))
    return 0


def _open(args: argparse.Namespace, processes: Processes, teacher: session.Teacher | None) -> tuple[Job, InitialState]:
    """Open the run in the order of `session`, so that mistakes are found before any costly work."""
    phase_timer = PhaseTimer()
    configuration, teachers, profiled = _open_configuration(args, processes, teacher)
    with processes.on_all("the vocabulary"):
        try:
            vocabulary = session.open_vocabulary(configuration)
        except UserError as error:
            if not (args.init_from and args.vocab):
                raise
            raise UserError(f"{error}; or leave --vocab out to use the vocabulary of {args.init_from}") from error
    _lock_folder(processes, configuration.model_dir)
    checkpoint, init = _open_checkpoint(args, processes, configuration, vocabulary)
    resolved = _resolve(processes, configuration, vocabulary, checkpoint)
    configuration, vocabulary = resolved.configuration, resolved.vocabulary
    model, warm_start = _open_model(processes, configuration, vocabulary, checkpoint, init, teachers, phase_timer)
    with processes.on_all("the evaluations"):
        hooks = open_evaluations(model.trainer, vocabulary.vocabulary)
    cache, data = _open_data(processes, configuration, vocabulary, checkpoint, phase_timer)
    model.trainer.count_flops(data.training)
    parts = (configuration, vocabulary, checkpoint, init, configuration.branch, model.trainer, cache, data, hooks)
    job = Job(processes, *parts, profiled, resolved.reasons)
    return job, InitialState(warm_start, model.aux)


def _open_configuration(
    args: argparse.Namespace, processes: Processes, teacher: session.Teacher | None
) -> tuple[session.TrainingConfiguration, Sequence[LoadedTeacher], tuple[int, int] | None]:
    """Load the configuration, which all processes must have alike; also return the teachers and the updates to profile."""
    with processes.on_all("the configuration"):
        configuration, opened = _load_configuration(args, teacher)
        config, profiled = configuration.config, profiled_steps(args.profile_steps, configuration.run.total_steps)
    names = ("model_dir", *init_flags.NAMES, init_flags.BRANCH, "profile_steps")
    own = [f"--{name}={getattr(args, name, None)}" for name in names]
    processes.check_same("configuration", [*own, *config.text().splitlines()])
    check_modules(processes, config.modules)
    if processes.first:
        warn(opened.warnings)
    return configuration, opened.loaded, profiled


def _load_configuration(
    args: argparse.Namespace, teacher: session.Teacher | None
) -> tuple[session.TrainingConfiguration, session.OpenTeacher]:
    """Load the configuration of the flags, with what MODEL_DIR, --init_from and the teacher add."""
    model_dir, source, used, defaults = to_path(args.model_dir), None, None, Defaults()
    if args.init_from:
        init_flags.check_other_folder(args.init_from, model_dir)
    branch = init_flags.open_branch(args, model_dir)
    is_branched = branch is not None and not (model_dir / "config.gin").is_file()
    where = branch.folder if branch and is_branched else model_dir
    gin_files = session.find_gin_files(args.gin_file, where, required=not args.init_from)
    if args.init_from:
        flags.import_modules(args)
        source = open_source(args.init_from, model_dir)
        defaults = source.defaults(gin_files)
    opened = teacher.open(gin_files, defaults) if teacher else session.OpenTeacher()
    config = flags.load_config(args, gin_files, opened.bindings, defaults, branch=where if is_branched else None)
    if branch and is_branched:
        config = session.with_cache_of(config, branch)
    if source:
        config, used = source.use_model(config, defaults, grow=args.init_grow is not None)
    config = with_own_vocabularies(config, where)
    named, config = config, session.with_implied_vocabulary(config, where, source)
    is_implied = config is not named
    if used:
        used = dataclasses.replace(used, vocabulary=is_implied)
    run = config.build("Run")
    text = flags.named_text(args, run.data)
    return session.TrainingConfiguration(model_dir, config, run, text, used, is_implied, branch), opened


def _lock_folder(processes: Processes, model_dir: Path) -> None:
    """Lock MODEL_DIR, from before its newest checkpoint is chosen until all processes have ended."""

    def lock() -> None:
        processes.held.enter_context(locks.hold(model_dir))

    processes.on_first(f"the lock of {model_dir}", lock)


def _open_checkpoint(
    args: argparse.Namespace,
    processes: Processes,
    configuration: session.TrainingConfiguration,
    vocabulary: session.OpenVocabulary,
) -> tuple[session.Checkpoint, InitFlags]:
    """Find the newest checkpoint and check that the run can start from it; also return the flags of the warm start."""
    model_dir = configuration.model_dir
    step = processes.on_first("the newest checkpoint", lambda: selection.choose(model_dir))
    checkpoint = session.describe_checkpoint(model_dir, step)
    init = InitFlags.from_args(args)
    if configuration.config.saved_sources and step is None and not init.is_given:
        # The configuration is MODEL_DIR's, whose run was stopped before the first checkpoint.
        init = init.updated(saved_init_flags(model_dir))
    if step is not None:
        with processes.on_all("the checkpoint"):
            if checkpoint.resumes:
                init.check_resumes(model_dir, saved_init_flags(model_dir))
            session.check_checkpoint(configuration, vocabulary, checkpoint)
    if branch := configuration.branch:
        with processes.on_all("the checkpoint of the other run"):
            branch.check(vocabulary.run, vocabulary.vocabulary)
        checkpoint = dataclasses.replace(checkpoint, branched=branch.step)
    return checkpoint, init


def _resolve(
    processes: Processes,
    configuration: session.TrainingConfiguration,
    vocabulary: session.OpenVocabulary,
    checkpoint: session.Checkpoint,
) -> session.Resolved[session.TrainingConfiguration]:
    """Choose each "auto" of the run for the devices, alike on all processes."""
    with processes.on_all("the devices"):
        own_memory = session.device_memory()  # on all, because JAX finds the devices of all processes together
        enable_compilation_cache()  # before anything is compiled
    memory = processes.on_first("the memory of the devices", lambda: own_memory)
    with processes.on_all("the choice of each auto"):
        resolved = session.resolve(configuration, vocabulary, checkpoint, memory)
    # Compiled programs confirm some choices, and compilers need not agree.
    processes.check_same("choice of each auto", resolved.configuration.config.text().splitlines())
    return resolved


def _open_model(
    processes: Processes,
    configuration: session.TrainingConfiguration,
    vocabulary: session.OpenVocabulary,
    checkpoint: session.Checkpoint,
    init: InitFlags,
    teachers: Sequence[LoadedTeacher],
    phase_timer: PhaseTimer,
) -> tuple[session.Model, WarmStart | None]:
    """Lay the model out on the mesh and read what it starts from, before text is read and anything is compiled."""
    run, pieces, model_dir = vocabulary.run, vocabulary.vocabulary, configuration.model_dir
    has_model, resumes = checkpoint.step is not None, checkpoint.resumes
    with processes.on_all("the model and the mesh"):
        model = session.open_model(run, pieces, teachers, phase_timer)
        warm_start = init.open(run, model.aux, pieces, model_dir, has_model=has_model, resumes=resumes)
    return model, warm_start


def _open_data(
    processes: Processes,
    configuration: session.TrainingConfiguration,
    vocabulary: session.OpenVocabulary,
    checkpoint: session.Checkpoint,
    phase_timer: PhaseTimer,
) -> tuple[TokenCache, session.RunData]:
    """Open the token cache, built in a child process if it is missing, and the batches."""
    run, model_dir, directory = vocabulary.run, configuration.model_dir, configuration.cache_directory

    def make_cache() -> None:
        if checkpoint.resumes and not is_used(directory) and not run.data.reads_seqio:
            # Refuses other text before tokenising it.
            session.check_given_text(configuration, vocabulary)
        with phase_timer.during(PREPARING, long=True):
            open_token_cache(configuration.config, run.data, directory, configuration.named)

    processes.on_first("the token cache", make_cache)
    with processes.on_all("reading the token cache"):
        if not is_used(directory):
            raise UserError(
                f"{directory}, which process 0 has made, does not exist on this host; give a folder that all processes share"
            )
        cache = TokenCache(directory)
        if checkpoint.resumes:
            check_text(cache.fingerprint, str(cache.directory), model_dir)
        data = session.open_data(run, cache, vocabulary.vocabulary)
    if processes.first:
        unknown = cache_warnings(cache, vocabulary.vocabulary, vocabulary.folder)
        warn(unknown + run_warnings(run, data.training, data.held_out))
    return cache, data


def _written_scores(job: Job, split: str) -> dict[int, dict[str, float]]:
    """Return the scores of a split of metrics.jsonl that are written already, by step."""

    def read() -> list[tuple[int, dict[str, float]]]:
        return sorted(retention.lines(job.model_dir, split).items()) if job.checkpoint.resumes else []

    first_step = job.checkpoint.first_step
    # Those beyond the checkpoint are of updates that are made again.
    return {step: scores for step, scores in job.processes.on_first("the evaluated steps", read) if step <= first_step}


def _print_best(job: Job) -> None:
    """Print the best checkpoint and its held-out scores."""
    step = selection.best(job.model_dir, job.run.keep)
    if step is not None:
        scores = retention.lines(job.model_dir, "eval")[step]
        values = "  ".join(f"{name} {value:.4g}" for name, value in scores.items() if value is not None)
        print(printable(f"best {job.run.keep_best} at step {step:,} (--step=best)  {values}"), flush=True)


def _is_finished(job: Job, evaluated: Mapping[int, Mapping[str, float]]) -> bool:
    """Return whether nothing is left to train or to evaluate; if so, print a line and clean up the checkpoints."""
    run, step = job.run, job.checkpoint.first_step
    reason = run.end_reason(evaluated)
    is_owed = run.eval_every and all(job.data.held_out) and step not in evaluated
    is_owed = is_owed or any(hook.owed(step) for hook in job.evaluations)
    if reason is None and (step < run.total_steps or is_owed):
        return False

    def tidy() -> None:
        # The run may have been killed before it deleted older checkpoints by its last scores, or while it did.
        cleanup.clear(job.model_dir, step)
        cleanup.delete_unkept(job.model_dir, run.keep)

    job.processes.on_first(str(job.model_dir), tidy)
    if job.processes.first and run.keep_best:
        _print_best(job)
    print(
        f"finished already: {job.model_dir} is at step {step:,} of {run.total_steps:,}{f': {reason}' if reason else ''}",
        flush=True,
    )
    return True


def _print_plan(args: argparse.Namespace, job: Job, initial: InitialState) -> dict[str, Any]:
    """Print the plan of the run and what it starts from; return the plan."""
    processes, trainer, first_update = job.processes, job.trainer, job.checkpoint.first_step + 1
    if processes.first and job.profiled and job.profiled[0] <= first_update:
        warn(
            [
                f"--profile_steps={args.profile_steps} is not recorded: this command starts with update {first_update:,}, which "
                "compiles"
            ]
        )
    counts = {split: job.cache.counts(split) for split in SPLITS}
    classes, parts = class_counts(job.run, job.cache), (trainer.mesh, trainer.abstract_state, trainer.tensors)
    row_counts = [source.row_counts for source in job.data.training]
    plan = make_plan(job.run, *parts, counts, trainer.flops_per_step, job.reasons, classes, row_counts)
    if not processes.alone:
        plan["processes"] = {"source": processes.source, "hosts": processes.hosts}
    print(plan_text(plan), flush=True)
    texts, rows = counts["train"]["documents"], job.data.training[0].sequence.epoch_rows
    if job.run.data.rows.is_labelled and rows != texts:
        epochs = seen(job.run.stages, job.data.training, job.run.total_steps)["epoch"]
        print(f"rows         {rows:,.0f} of {texts:,} labelled texts; the run uses each {epochs:.3g} times", flush=True)
    if job.branch:
        print(job.branch.description, flush=True)
    used = job.configuration.used
    if initial.warm_start:
        if used and (line := used.describe(job.vocabulary.vocabulary.size)):
            print(line, flush=True)
        print(initial.warm_start.description, flush=True)
    return plan


def _make_folder(job: Job, plan: dict[str, Any], command: Sequence[str]) -> None:
    """Make MODEL_DIR, or update its files, on process 0; `command` is recorded as that of this start."""
    model_dir, config, directory = job.model_dir, job.configuration.config, job.configuration.cache_directory
    is_new = job.checkpoint.step is None
    vocabulary: Vocabulary | None = job.vocabulary.vocabulary if is_new else None
    branched = {init_flags.BRANCH: job.branch.text} if job.branch else None
    start = branched or job.init.record() if is_new else None

    def make() -> None:
        # A folder that is moved or copied takes its own cache along.
        is_own = directory.absolute() == (model_dir / "cache").absolute()
        saved = config
        if job.run.data.cache_dir:
            saved = config.rebound("TextData.cache_dir", None if is_own else str(directory.absolute()))
        if job.configuration.implies_vocabulary:
            saved = saved.rebound("TextData.vocabulary", None)  # vocab/ is it, wherever the folder is moved
        own_vocabularies = job.run.objective.vocabulary_folders
        prepare_folder(model_dir, saved, plan, job.cache.fingerprint, vocabulary, start, own_vocabularies)
        starts.add(model_dir, job.checkpoint.first_step, command, config)
        cleanup.clear(model_dir, job.checkpoint.step)

    job.processes.on_first(str(model_dir), make)


@contextmanager
def _open_outputs(job: Job, plan: dict[str, Any]) -> Iterator[Outputs]:
    """Open what the run writes to, and start to watch its progress and signals; at the end all of it is written."""
    run, processes, model_dir = job.run, job.processes, job.model_dir
    stop = preemption.Stop(processes)
    # Profiles are named by host and time, which processes may share.
    traces = model_dir if processes.first else model_dir / f"process_{processes.index}"
    # Process 0 ends last: without its service of JAX no other process could report where it stands.
    later = 0 if processes.alone or not processes.first else 3
    metrics = partial(MetricsWriter, model_dir, job.checkpoint.first_step, run.trackers, plan)
    with (
        watchdog.watch(job.trainer.phase_timer, run.watchdog_seconds, processes.index, later=later),
        preemption.stop_on_signals(stop),
        closing(Checkpoints(model_dir, keep=run.keep, processes=processes.others)) as checkpoints,
        closing(metrics() if processes.first else NoMetrics()) as writer,
        closing(ProfileHook(*(job.profiled or (0, 0)), traces)) as profile,
    ):
        yield Outputs(checkpoints, writer, profile, stop)


def _train(
    job: Job, state: TrainState, outputs: Outputs, evaluated: Mapping[int, Mapping[str, float]]
) -> tuple[int, Sequence[Hook], dict[str, float]]:
    """Train and save the last step; return it, the hooks, and the seconds of each phase."""
    run, trainer, start = job.run, job.trainer, job.checkpoint.first_step
    phase_timer, checkpoints, writer, stop = trainer.phase_timer, outputs.checkpoints, outputs.writer, outputs.stop
    vocabulary, held_out = job.vocabulary.vocabulary, job.data.held_out
    hooks = [*make_hooks(trainer, checkpoints, held_out, vocabulary, writer, stop, evaluated), *job.evaluations]
    if job.profiled:
        hooks.append(outputs.profile)
    hosts = StragglerMonitor(job.processes, stop, writer)
    counted = partial(seen, run.stages, job.data.training)
    flops_after = partial(run.flops_after, flops_per_step=trainer.flops_per_step)
    log = ProgressLog(writer, phase_timer, start, run.total_steps, run.log_every, flops_after, hosts, counted)
    stop.reasons += [checkpoints.failed, writer.failed]
    batches, is_ranged = StagedBatches(run.stages, job.data.training), job.cache.ranged_files is not None
    state = loop.train(trainer, state, batches, log, hooks, stop, waits_for_rows=is_ranged)
    with job.processes.on_all("the metrics"):
        writer.check()
    if job.processes.first and log.empty:
        warn([f"{log.empty:,} of the steps had no targets and changed nothing: their rows have no token to mask"])
    phase_timer.begin(SAVING, long=True)
    checkpoints.save_last(state)
    checkpoints.delete_unkept()  # by the last scores
    step = int(state.step)
    seconds = phase_timer.seconds()
    writer.write_all(step, {"memory": _memory(trainer), "time": {name.replace(" ", "_"): own for name, own in seconds.items()}})
    return step, hooks, seconds


def _memory(trainer: Trainer) -> dict[str, int]:
    """Return the bytes that the compiled steps use on each device, and the peak of the first device where it counts."""
    sizes = {f"{name.replace(' ', '_')}_bytes": size for name, size in trainer.compiled_bytes.items()}
    counted = jax.local_devices()[0].memory_stats() or {}
    return sizes | ({"peak_bytes": counted["peak_bytes_in_use"]} if "peak_bytes_in_use" in counted else {})
