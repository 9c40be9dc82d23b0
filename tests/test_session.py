"""Opening of a run: the order of its steps, and the result of each."""

import copy
import dataclasses
from pathlib import Path

import pytest

from bertfam import cli, session
from bertfam.commands import check_run
from bertfam.config import Override, load
from bertfam.errors import UserError
from bertfam.training.run_plan import make_plan

SIZES = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 32, "max_length": 32}
VALUES = {"MODEL": "@BertConfig()", "Stage.length": 32, "BATCH_SIZE": 4, "TRAIN_STEPS": 8}
VALUES |= {f"BertConfig.{name}": value for name, value in SIZES.items()}
FILES = ("objectives/mlm.gin", "runs/defaults.gin")


@pytest.fixture
def configuration(cache_dir):
    values = VALUES | {"TextData.cache_dir": repr(str(cache_dir))}
    config = load(FILES, [Override(f"{name} = {value}", "test") for name, value in values.items()])
    run = config.build("Run")
    return session.Configuration(None, config, run, run.data)


def test_steps_open_vocabulary_model_and_data(configuration, cache_dir, vocabulary):
    opened = session.open_vocabulary(configuration)
    assert configuration.run.objective.model.vocab_size is None
    assert opened.run.objective.model.vocab_size == opened.vocabulary.size == vocabulary.size
    assert opened.cache.directory == cache_dir

    checkpoint = session.describe_checkpoint(None, None)
    assert (checkpoint.step, checkpoint.resumes, checkpoint.first_step) == (None, False, 0)
    session.check_checkpoint(configuration, opened, checkpoint)

    model = session.open_model(opened.run, opened.vocabulary)
    assert model.aux == {}
    data = session.open_data(model.trainer.run, opened.cache, opened.vocabulary)
    (training,), (held_out,) = data.training, data.held_out
    (stage,) = model.trainer.stages
    for source in (training, held_out.source):
        rows = source.rows(0, 0, 4)
        assert {name: rows[name].shape[1:] for name in stage.features} == {
            name: spec.shape for name, spec in stage.features.items()
        }


def test_auto_is_resolved_and_described(configuration):
    run = session.open_vocabulary(configuration).run
    assert run.objective.execution.attention == "auto"
    trainer = session.open_model(run, session.open_vocabulary(configuration).vocabulary).trainer
    (stage,) = make_plan(run, trainer.mesh, trainer.abstract_state, trainer.tensors, {})["stages"]
    assert stage["attention"] and "auto" not in stage["attention"]


def test_run_needs_a_configuration_and_a_folder_of_its_own(tmp_path):
    with pytest.raises(UserError, match="--gin_file=FILE"):
        session.find_gin_files([], None)
    with pytest.raises(UserError, match="--gin_file=FILE"):
        session.find_gin_files([], tmp_path / "new")
    assert session.find_gin_files(["a.gin"], tmp_path / "new") == ["a.gin"]
    (tmp_path / "letter.txt").touch()
    with pytest.raises(UserError, match=r"letter\.txt"):
        session.find_gin_files(["a.gin"], tmp_path)
    for name, flag in (("vocab.txt", "--vocab="), ("cache.json", "--cache_dir="), ("config.json", "--init_from=")):
        (tmp_path / name).touch()
        with pytest.raises(UserError, match=f"{flag}{tmp_path}"):
            session.find_gin_files([], tmp_path)
    saved = str(tmp_path / "config.gin")
    Path(saved).touch()
    with pytest.raises(UserError, match="no objective"):
        session.find_gin_files([], tmp_path)
    Path(saved).write_text("Run.objective = @Mlm()")
    assert session.find_gin_files([], tmp_path) == [saved]
    (tmp_path.parent / "over.gin").write_text("Run.log_every = 7")
    (tmp_path.parent / "whole.gin").write_text(f'include "over.gin"\ninclude "{FILES[0]}"')
    over, whole = (str(tmp_path.parent / name) for name in ("over.gin", "whole.gin"))
    assert session.find_gin_files([over], tmp_path) == [saved, over]
    assert session.find_gin_files([whole], tmp_path) == [whole]


def test_token_cache_that_stayed_on_another_machine_is_named(configuration, tmp_path):
    run = dataclasses.replace(configuration.run, data=dataclasses.replace(configuration.run.data, cache_dir="/nowhere/cache"))
    with pytest.raises(UserError, match=rf"/nowhere/cache, .* {tmp_path}, .* by --cache_dir"):
        session.open_saved_cache(run, tmp_path, otherwise=", or name its copy by --cache_dir")
    with pytest.raises(UserError, match="no text: .*no token cache at /nowhere/cache"):
        session.open_vocabulary(dataclasses.replace(configuration, run=run))


def test_command_opens_in_order_and_changes_no_flag(cache_dir, monkeypatch, capsys):
    steps = ("find_gin_files", "open_vocabulary", "describe_checkpoint", "check_checkpoint", "open_model", "open_data")
    called = []

    def recorded(name, function):
        def step(*args, **options):
            called.append(name)
            return function(*args, **options)

        return step

    for name in steps:
        monkeypatch.setattr(session, name, recorded(name, getattr(session, name)))

    run, copies = check_run.run, []

    def run_with_copy(args):
        copies.append((copy.deepcopy(vars(args)), args))
        return run(args)

    monkeypatch.setattr(check_run, "run", run_with_copy)
    flags = [*(f"--gin_file={name}" for name in FILES), *(f"--gin.{name}={value}" for name, value in VALUES.items())]
    assert cli.main(["check", *flags, f"--cache_dir={cache_dir}"]) == 0
    assert called == list(steps)
    ((before, args),) = copies
    assert vars(args) == before
    assert capsys.readouterr().out.endswith("ok\n")
