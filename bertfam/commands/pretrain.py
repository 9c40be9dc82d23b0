"""`bertfam pretrain`: text or a token cache to a trained model."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bertfam.commands import flags, init_flags
from bertfam.storage.paths import to_path

if TYPE_CHECKING:
    from bertfam.config import Override
    from bertfam.multihost.processes import Processes
    from bertfam.training.teachers import LoadedTeacher

SUMMARY = "train a model"
EXAMPLE = """\
  bertfam vocab --task=python_docs --size=8192 --output=vocab
  bertfam pretrain --gin_file=runs/quickstart.gin --vocab=vocab --model_dir=model
A new run needs a gin file, a vocabulary, and text (quickstart.gin names a task) or a token cache that is built. The same command
again goes on from the newest checkpoint; so does --model_dir=DIR alone. Exit code 0: finished; 75: SIGTERM or Ctrl-C, the step is
saved; 76: nothing went on for Run.watchdog_seconds; 77: another process is gone."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    flags.add_config(parser)
    flags.add_text(parser)
    flags.add_cache_dir(parser)
    flags.add_model_dir(parser)
    init_flags.add(parser)
    parser.add_argument(
        "--profile_steps",
        metavar="FIRST-LAST",
        help="record a profile of these updates, as 100-104, in MODEL_DIR/plugins/profile, for TensorBoard or Perfetto (of "
        "process I > 0 in MODEL_DIR/process_I)",
    )
    flags.add_processes(parser)


def main(args: argparse.Namespace) -> int:
    """Train; return the exit status."""
    return train(args)


def train(
    args: argparse.Namespace, more: Callable[[], Sequence[Override]] = tuple, teachers: list[LoadedTeacher] | None = None
) -> int:
    """Train; return the exit status.

    Args:
      args: with all that `add_arguments` declares.
      more: asked for bindings of the configuration, under those of the flags, once all processes are there.
      teachers: those that `more` has read; the list is emptied.
    """
    from bertfam.multihost.membership import join
    from bertfam.multihost.preemption import exit_on_sigterm

    with (
        exit_on_sigterm(),
        join(args.coordinator, args.num_processes, args.process_index, args.initialization_timeout) as processes,
    ):
        return _train(args, processes, more, [] if teachers is None else teachers)


def _train(
    args: argparse.Namespace, processes: Processes, more: Callable[[], Sequence[Override]], teachers: list[LoadedTeacher]
) -> int:
    from bertfam.errors import UserError
    from bertfam.multihost.same_code import check_modules
    from bertfam.training.hooks import ProfileHook, profiled_steps
    from bertfam.training.logs.phase_timer import PREPARING, SAVING, PhaseTimer, shares
    from bertfam.training.model_dir import check_folder, check_resumes, prepare_folder, saved_init_flags

    phase_timer = PhaseTimer()

    # -- Configuration: the flags', or what the folder began with
    model_dir = to_path(args.model_dir)
    began_with = model_dir / "config.gin"
    with processes.on_all("the configuration"):
        check_folder(model_dir)
        alone = not args.gin_file
        if alone and not began_with.is_file():
            raise UserError("no configuration: give --gin_file=FILE (runs/quickstart.gin, say)")
        args.gin_file = args.gin_file or [str(began_with)]
        args.gin_bindings = [*more(), *args.gin_bindings]
        config = flags.load_config(args)
        run = config.build("Run")
        profiled = profiled_steps(args.profile_steps, run.total_steps)
        named = flags.named_text(args, run.data)
    begins = [f"--{name}={getattr(args, name)}" for name in ("model_dir", *init_flags.NAMES, "profile_steps")]
    processes.check_same("configuration", [*begins, *config.text().splitlines()])
    check_modules(processes, config.modules)

    # -- Vocabulary: the token cache's, or the one that it will be built with
    from bertfam.data import vocabularies
    from bertfam.data.checks.vocabulary_check import check_padding_id, check_vocabulary_fits
    from bertfam.errors import warn
    from bertfam.training.data import check_text, token_cache, vocabulary_folder, warnings

    with processes.on_all("the vocabulary"):
        directory = run.data.cache_directory(model_dir)
        folder = vocabulary_folder(run.data, directory)
        vocabulary = vocabularies.load(folder)
        for stage in run.stages:
            check_vocabulary_fits(run.data, vocabulary.token_ids, folder, stage.length)
        check_padding_id(run.objective.networks.values(), vocabulary.token_ids, folder)
        run = run.sized(vocabulary.size)

    # -- What the folder has learned so far: a run to go on with, an imported model to start from, or nothing
    from bertfam.training.checkpoints import Checkpoints, cleanup, has_training_state, selection

    step = processes.on_first("the newest checkpoint", lambda: selection.choose(model_dir))
    goes_on = step is not None and has_training_state(model_dir, step)
    if alone and step is None and not any(getattr(args, name) for name in init_flags.NAMES):
        vars(args).update(saved_init_flags(model_dir))
    if step is not None:
        with processes.on_all("what was trained before"):
            check_resumes(model_dir, run, (named.vocabulary or folder, folder), step)

    # -- Model and mesh: sizes are refused here, before the text is read and anything is compiled
    import jax

    from bertfam.training.hardware import check_jaxlib
    from bertfam.training.teachers import read_teachers
    from bertfam.training.trainer import Trainer

    with processes.on_all("the model and the mesh"):
        check_jaxlib(jax.default_backend(), jax.lib.__version__)
        trainer = Trainer(run, run.mesh.build(), phase_timer)
        aux = read_teachers(run, vocabulary, teachers)
        teachers.clear()
        begin = init_flags.start(args, run, aux, vocabulary, model_dir, begun=step is not None, goes_on=goes_on)

    # -- Data: the token cache, built in a child process if it is missing
    from bertfam.data.token_cache.builder import fingerprint
    from bertfam.data.token_cache.cache import TokenCache
    from bertfam.storage.files import is_used
    from bertfam.training.stages import StagedBatches

    def make_cache() -> None:
        if goes_on and not is_used(directory) and not run.data.reads_seqio:
            # Before text is tokenised that would be refused after it.
            check_text(fingerprint(run.data.corpora, vocabulary), "what is given", model_dir)
        with phase_timer.during(PREPARING, long=True):
            token_cache(config, run.data, directory, named)

    processes.on_first("the token cache", make_cache)
    with processes.on_all("reading the token cache"):
        if not is_used(directory):
            raise UserError(f"{directory}, which process 0 has made, is not here; give a folder that all processes share")
        cache = TokenCache(directory)
        if goes_on:
            check_text(cache.fingerprint, str(cache.directory), model_dir)
        sources, evaluations = [], []
        for index, stage in enumerate(run.stages):
            sizes = (cache, vocabulary.token_ids, stage.length, stage.batch_size)
            sources.append(run.data.training(*sizes, run.seed, index))
            evaluations.append(run.data.held_out(*sizes, at_most=run.eval_batches))
    if processes.first:
        warn(warnings(run, sources, evaluations))

    # -- Plan
    from bertfam.data.corpora.corpus import SPLITS
    from bertfam.training.checkpoints import retention
    from bertfam.training.summary import make_plan, plan_text

    start = step if step is not None and goes_on else 0
    evaluated = processes.on_first("what was evaluated", lambda: sorted(retention.lines(model_dir, "eval")) if goes_on else [])
    if start >= run.total_steps and (start in evaluated or not run.eval_every or not all(evaluations)):
        # The last save may have been killed as it deleted older ones.
        processes.on_first(str(model_dir), lambda: cleanup.clear(model_dir, start))
        print(f"finished already: {model_dir} stands at step {start:,} of {run.total_steps:,}", flush=True)
        return 0
    if processes.first and profiled and profiled[0] < start + 2:
        told = f"--profile_steps={args.profile_steps} is not recorded: this command begins with update {start + 1:,}"
        warn([f"{told}, which compiles"])
    counts = {split: cache.counts(split) for split in SPLITS}
    plan = make_plan(run, trainer.mesh, trainer.abstract_state, trainer.tensors, counts)
    if not processes.alone:
        plan["processes"] = {"told_by": processes.source, "hosts": processes.hosts}
    print(plan_text(plan), flush=True)
    if begin:
        print(begin.told(), flush=True)

    started = init_flags.record(args) if step is None else None

    def make_model_dir() -> None:
        # A folder that is moved or copied takes its own cache along.
        own = directory.absolute() == (model_dir / "cache").absolute()
        there = config.rebound("TextData.cache_dir", None if own else str(directory.absolute())) if run.data.cache_dir else config
        prepare_folder(model_dir, there, plan, cache.fingerprint, vocabulary if step is None else None, started)
        cleanup.clear(model_dir, step)

    processes.on_first(str(model_dir), make_model_dir)

    # -- Training; however it ends, a checkpoint that was begun is whole before the command is over
    from contextlib import closing

    from bertfam.multihost import preemption
    from bertfam.training import loop, watchdog
    from bertfam.training.hardware import keep_compilations
    from bertfam.training.hooks import make_hooks
    from bertfam.training.logs.metrics import MetricsWriter, NoMetrics
    from bertfam.training.logs.progress import ProgressLog
    from bertfam.training.logs.stragglers import StragglerMonitor
    from bertfam.training.summary import duration

    keep_compilations(model_dir)
    stop = preemption.Stop(processes)
    # Profiles are named by host and time, which processes may share.
    traces = model_dir if processes.first else model_dir / f"process_{processes.index}"
    with (
        # Of several processes process 0 ends last: without the service of JAX in it, no other could tell where it stands.
        watchdog.watch(
            phase_timer, run.watchdog_seconds, processes.index, later=0 if processes.alone or not processes.first else 3
        ),
        preemption.stop_on_signals(stop),
        closing(Checkpoints(model_dir, keep=run.keep, processes=processes.others)) as checkpoints,
        closing(MetricsWriter(model_dir, start) if processes.first else NoMetrics()) as writer,
        closing(ProfileHook(*(profiled or (0, 0)), traces)) as profile,
    ):
        if begin:
            state = begin.state(trainer)
        elif step is None:
            state = trainer.new_state()
        elif goes_on:
            state = trainer.restored(checkpoints, step)
            print(f"resumed from step {step:,}", flush=True)
        else:
            state = trainer.from_imported(checkpoints, step)
            print(f"started from the model in {model_dir}", flush=True)

        state = trainer.with_aux(state, aux)
        begin, aux = None, {}  # on the devices they are; their memory is free
        hooks = make_hooks(trainer, checkpoints, evaluations, vocabulary, writer, stop, evaluated)
        if profiled:
            hooks.append(profile)
        hosts = StragglerMonitor(processes, stop, writer)
        log = ProgressLog(writer, phase_timer, start, run.total_steps, run.log_every, run.flops_after, hosts)
        stop.reasons += [checkpoints.failed, writer.failed]
        state = loop.train(trainer, state, StagedBatches(run.stages, sources), log, hooks, stop)
        with processes.on_all("the metrics"):
            writer.check()
        if processes.first and log.empty:
            warn([f"{log.empty:,} of the steps had nothing to predict and learned nothing: their rows have no token to mask"])
        phase_timer.begin(SAVING, long=True)
        checkpoints.save(state)
        checkpoints.wait()
        checkpoints.delete_unkept()  # by the last scores
        step = int(state.step)
        seconds = phase_timer.seconds()
        writer.write(step, "time", {name.replace(" ", "_"): value for name, value in seconds.items()})
    print(f"{step - start:,} updates in {duration(sum(seconds.values()))}: {shares(seconds)}", flush=True)
    if step < run.total_steps or any(hook.owed(step) for hook in hooks):
        print(f"stopped after step {step:,} of {run.total_steps:,}, which is saved; the same command goes on", flush=True)
        return preemption.EXIT_CODE
    print(f"finished: {model_dir}", flush=True)
    return 0
