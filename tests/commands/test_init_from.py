"""`bertfam pretrain --init_from`: a new run starts from another model's weights."""

import json
import shutil

import initial_state as initial_states
import numpy as np
import pytest
import xla
from command_line import in_process
from fork_server import run_program
from initial_state import initial_state, leaves
from model_folders import arrays, cut

from bertfam import api, cli
from bertfam.data import vocabularies
from bertfam.multihost.processes import Processes
from bertfam.training.checkpoints import newest
from bertfam.training.model_dir import read_run

# One update of rate 0 changes nothing.
ONE = (
    *("--gin.Run.stages=(@short/Stage(),)", "--gin.short/Stage.steps=1", "--gin.LinearDecay.warmup_steps=0"),
    *("--gin.LinearDecay.peak=1e-2", "--gin.Run.eval_every=0"),
)


@pytest.fixture(scope="module")
def others(trained, tmp_path_factory):
    """Return a folder with weights/, a copy of the trained model's weights, and exported/."""
    folder = tmp_path_factory.mktemp("others")
    source = f"--model_dir={trained.model_dir}"
    assert cli.main(["checkpoints", source, f"--copy_weights={folder / 'weights'}"]) == 0
    assert cli.main(["export", source, f"--output={folder / 'exported'}"]) == 0
    return folder


@pytest.fixture(scope="module")
def pieces(trained, rewritten):
    """Return the row of each piece in the trained model's vocabulary, and the pieces of the other vocabulary."""
    old = vocabularies.load(trained.model_dir / "vocab").pieces(range(300))
    return {piece: row for row, piece in enumerate(old)}, vocabularies.load(rewritten / "vocab").pieces(range(250))


def spelling(piece, rows):
    """Return the rows of the longest pieces from the left; those inside a word have ## before them."""
    text, inside, spelt = piece.removeprefix("##"), piece.startswith("##"), []
    while text:
        length = next(length for length in range(len(text), 0, -1) if "##" * inside + text[:length] in rows)
        spelt.append(rows["##" * inside + text[:length]])
        text, inside = text[length:], True
    return spelt


def means(table, pieces, rows):
    """Return the mean of the rows that spell each piece."""
    return np.stack([table[spelling(piece, rows)].mean(0, np.float64).astype(np.float32) for piece in pieces])


def has_rows(name):
    """Return whether an array has a row for each token, and others that pad it."""
    return "['word']" in name or name.endswith("['mlm_head']['bias']")


def test_weights_and_moments_of_a_run(trained, tmp_path):
    """A new run, with a schedule of its own, starts from all that both have."""
    words = trained.pretrain(tmp_path / "model", f"--cache_dir={trained.model_dir / 'cache'}", *ONE, "--init_optimizer")
    out, state = initial_state(*words, f"--init_from={trained.model_dir}")
    rows = "of 300 tokens all keep their rows"
    line = f"starts from {trained.model_dir}: encoder, mlm_head, nsp_head, pooler; {rows}; with the optimizer's moments"
    assert [each for each in out.splitlines() if each.startswith("start")] == [line]
    old, new = arrays(trained.model_dir, 24), leaves({"params": state.params, "rest": {"opt_state": state.opt_state}})
    assert new.keys() == {name for name in old if name.startswith(("['params']", "['rest']['opt_state']"))} and len(new) > 60
    for name, value in new.items():
        count = 300 if has_rows(name) else None  # rows of no token are not used
        assert np.array_equal(old[name][:count], value[:count]) if value.ndim else old[name] == value, name
    assert (state.step, state.skipped) == (0, 0)
    assert [int(value) for name, value in new.items() if "updates" in name] == [24]


def test_the_encoder_of_a_huggingface_folder_over_another_vocabulary(trained, others, rewritten, pieces, tmp_path):
    words = ["pretrain", f"--gin_file={trained.folder / 'run.gin'}", f"--cache_dir={rewritten / 'cache'}", *ONE]
    flags = [f"--model_dir={tmp_path / 'model'}", f"--init_from={others / 'exported'}", "--init_parts=encoder"]
    out, state = initial_state(*words, *flags)
    rows, new = pieces
    used = {row: rows[piece] for row, piece in enumerate(new) if piece in rows}
    assert 50 < len(used) < 200
    line = (
        f"of 250 tokens {len(used)} keep their rows, {250 - len(used)} begin with the mean of their old pieces' rows, 0 are new"
    )
    assert f"starts from {others / 'exported'}: encoder; {line}; new mlm_head, nsp_head, pooler" in out.splitlines()
    theirs, ours = leaves(api.load(trained.model_dir).params), leaves(state.params)
    assert theirs.keys() == ours.keys()
    for name, value in theirs.items():
        if "['word']" in name:
            assert np.array_equal(ours[name][list(used)], value[list(used.values())])
            lacking = [row for row in range(250) if row not in used]  # of the same alphabet, so that each can be spelt
            assert min(len(spelling(new[row], rows)) for row in lacking) > 1
            assert np.array_equal(ours[name][lacking], means(value, [new[row] for row in lacking], rows))
        else:
            constant = len(np.unique(ours[name])) == 1  # new biases and scales
            assert np.array_equal(ours[name], value) == name.startswith("['encoder']") or constant, name


def test_new_tokens_start_alike_on_any_mesh(trained, rewritten, pieces, tmp_path):
    """Over another vocabulary, with the head; the table is whole, or split over the two devices of another process."""
    flags = [f"--gin_file={trained.folder / 'run.gin'}", f"--cache_dir={rewritten / 'cache'}", f"--init_from={trained.model_dir}"]
    words = ["pretrain", *flags, *ONE]
    states = {}
    for name, more in {"whole": (), "random": ("--init_new_rows=random",)}.items():
        out, state = initial_state(*words, f"--model_dir={tmp_path / name}", *more)
        assert "; with the optimizer's moments" not in out
        states[name] = leaves({"params": state.params})
        assert [int(value) for name, value in leaves(state.opt_state).items() if "updates" in name] == [0]
    split = ["--init_optimizer", "--gin.MeshShape.data=1", "--gin.MeshShape.tensor=2", f"--model_dir={tmp_path / 'split'}"]
    command = [initial_states.__file__, tmp_path / "split.npz", *words, *split]
    out, _ = run_program(*command, environment=xla.device_environment(2))
    assert "; with the optimizer's moments" in out
    after, before = np.load(tmp_path / "split.npz"), arrays(trained.model_dir, 24)
    rows, new = pieces
    lacking = [row for row, piece in enumerate(new) if piece not in rows]
    assert len(lacking) > 50
    for name, whole in states["whole"].items():
        count = 250 if has_rows(name) else None
        whole, random = whole[:count], states["random"][name][:count]
        assert np.array_equal(whole, after[name][:count]), name
        if count:
            assert np.array_equal(whole[lacking], means(before[name], [new[row] for row in lacking], rows))
            assert [row for row in range(250) if not np.array_equal(whole[row], random[row])] == lacking
        else:
            assert np.array_equal(whole, random) or len(np.unique(whole)) == 1, name
    # The optimizer has made 24 updates before; the run starts at step 0.
    assert [int(value) for name, value in after.items() if "updates" in name] == [24] and after["['step']"] == 0


def test_a_run_that_was_killed_before_it_saved_starts_from_the_same(trained, tmp_path, capsys, monkeypatch):
    """The folder alone is enough, from anywhere; new flags without --init_from start from a new model."""
    given = *ONE, f"--cache_dir={trained.model_dir / 'cache'}"
    monkeypatch.chdir(trained.folder)
    start = "--init_from=model", "--init_parts=encoder,mlm_head", "--init_optimizer"
    _, killed = initial_state(*trained.pretrain(tmp_path / "killed", *given, *start))
    assert newest(tmp_path / "killed") is None
    monkeypatch.chdir(tmp_path)
    out, again = initial_state("pretrain", "--model_dir=killed")
    assert f"starts from {trained.model_dir}: encoder, mlm_head; " in out
    killed, again = leaves(killed), leaves(again)
    assert killed.keys() == again.keys() and all(np.array_equal(value, again[name]) for name, value in killed.items())
    out, new = initial_state(*trained.pretrain(tmp_path / "killed", *given))
    assert "starts from" not in out and not (tmp_path / "killed" / "start.json").exists()
    assert any(not np.array_equal(value, killed[name]) for name, value in leaves(new).items() if "['encoder']" in name)
    # With its checkpoint the run needs the other folder no more.
    cut(trained.model_dir, tmp_path / "finished", 24)
    (tmp_path / "finished" / "start.json").write_text('{"init_from": "/no/folder"}')
    assert cli.main(["pretrain", "--model_dir=finished"]) == 0
    assert "finished already" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("saved", "flags", "named"),
    [
        ("{weights}", ["--init_from=weights/"], None),
        ("{weights}", ["--init_from=weights", "--init_parts=encoder", "--init_new_rows=mean"], None),
        ("/moved/weights", ["--init_from=weights"], None),
        ("/gone/other", ["--init_from=weights"], "started from /gone/other, which is gone, and resumes; weights is not used"),
        ("{weights}", ["--init_from=exported"], "--init_from=exported: the run in {run} started from {weights}; leave"),
        (None, ["--init_from=exported"], "--init_from=exported: the run in {run} started from a new model; leave"),
        ("{weights}", ["--init_from=weights", "--init_parts=pooler"], "started from {weights} with --init_parts=encoder"),
        ("{weights}", ["--init_from=weights", "--init_optimizer"], "started from {weights} without --init_optimizer; "),
    ],
)
def test_a_run_resumes_from_its_own_start_only(trained, others, tmp_path, monkeypatch, capsys, saved, flags, named):
    values = {"weights": others / "weights", "run": tmp_path / "run"}
    cut(trained.model_dir, tmp_path / "run", 24)
    if saved:
        record = {"init_from": saved.format(**values), "init_parts": "encoder", "init_new_rows": None, "init_optimizer": False}
        (tmp_path / "run/start.json").write_text(json.dumps(record))
    monkeypatch.chdir(others)
    resumes = named is None or "resumes" in named
    assert cli.main(["pretrain", f"--model_dir={values['run']}", *flags]) == (0 if resumes else 2)
    out, err = capsys.readouterr()
    assert ("finished already" in out) == resumes
    assert named.format(**values) in err if named else "is not used" not in err


LONG = "--gin.MODEL=@LongformerConfig()"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--init_from={folder}/none"], "{folder}/none is neither a model folder (config.gin) nor a Hugging Face folder "),
        (["--init_new_rows=random"], "--init_new_rows requires --init_from; give that too, or leave it out"),
        (["--init_optimizer"], "--init_optimizer requires --init_from; give that too, or leave it out"),
        (
            ["--init_from={weights}", "--init_optimizer"],
            "{weights} holds a model without an optimizer state; leave --init_optimizer out",
        ),
        (
            ["--init_from={exported}", "--init_optimizer"],
            "{exported} is not the folder of a run (no config.gin) and has no optimizer state; leave --init_optimizer ",
        ),
        (
            ["--init_from={model}", "--init_optimizer", "--gin.Run.optimizer=@Lamb()"],
            "Run.optimizer was AdamW in {model} and is Lamb now; change it back, or use another --init_from (or leave "
            "--init_optimizer out)",
        ),
        (
            ["--init_from={model}", "--init_optimizer", "--gin.AdamW.b2=0.98"],
            "Run.optimizer.b2 was 0.999 in {model} and is 0.98 now; change it back, or use another --init_from (or leave ",
        ),
        (["--init_parts=encoder"], "--init_parts requires --init_from; give that too, or leave it out"),
        (
            ["--init_from={model}", "--init_parts=encoder,decoder"],
            "--init_parts=encoder,decoder: {model} has no decoder; it has encoder, mlm_head, nsp_head, pooler",
        ),
        (
            ["--init_from={model}", "--gin.BertConfig.num_layers=3"],
            "Run.objective.model.num_layers was 2 in {model} and is 3 now; change it back, or use another --init_from",
        ),
        (
            ["--init_from={model}", "--gin.LongformerConfig.position_offset=1", "--gin.LongformerConfig.num_layers=3", LONG],
            "Run.objective.model.num_layers was 2 in {model} and is 3 now; change it back, or use another --init_from",
        ),
        (
            ["--init_from={model}", "--gin.MODEL=@ElectraConfig()", "--gin.ElectraConfig.num_layers=2"],
            "Run.objective.model was BertConfig in {model} and is ElectraConfig now; change it back, or use another --init_from",
        ),
        (["--init_grow=stack"], "--init_grow requires --init_from; give that too, or leave it out"),
        (
            ["--init_from={model}", "--init_grow=stack"],
            "--init_grow: the sizes of this run are those of {model}: name a larger model of the family",
        ),
        (
            ["--init_from={model}", "--init_grow=stack", "--gin.BertConfig.num_layers=1"],
            "Run.objective.model.num_layers is 1, and 2 in {model}: --init_grow makes no size smaller; change it",
        ),
        (
            ["--init_from={model}", "--init_grow=repeat", "--gin.BertConfig.hidden_size=32"],
            "Run.objective.model.num_heads is 2, of heads 16 wide, and those of {model} are 8 wide: a model grows by more heads",
        ),
        (
            ["--init_from={model}", "--init_grow=stack", "--gin.BertConfig.num_layers=4", "--init_optimizer"],
            "--init_optimizer does not go with --init_grow: the moments of a larger model are new; leave it out",
        ),
    ],
)
def test_mistakes(trained, others, tmp_path, capsys, flags, message):
    values = {"folder": tmp_path, "model": trained.model_dir} | {name: others / name for name in ("weights", "exported")}
    flags = [flag.format(**values) for flag in flags]
    assert cli.main(trained.pretrain(tmp_path / "model", f"--cache_dir={trained.model_dir / 'cache'}", *flags)) == 2
    assert capsys.readouterr().err.startswith(f"bertfam: error: {message.format(**values)}")
    assert list(tmp_path.iterdir()) == []


def test_a_run_does_not_start_from_its_own_folder(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(trained.folder)
    for other in (trained.model_dir, "model/../model"):
        assert cli.main(["pretrain", f"--init_from={other}", "--model_dir=model"]) == 2
        assert capsys.readouterr().err.startswith(f"bertfam: error: --init_from={other} is the --model_dir of this run: leave")


@pytest.fixture
def text(trained, caches_in_process, tmp_path):
    """Return the flags of a little text."""
    held_out = trained.folder / "text/held-out.txt"
    (tmp_path / "little.txt").write_text(held_out.read_text() + "\n")
    return [f"--input={tmp_path / 'little.txt'}", f"--validation_input={held_out}"]


def test_a_folder_is_enough_without_a_gin_file(trained, others, text, tmp_path, capsys):
    """Objective, sizes and vocabulary are the folder's; the run needs the folder no more once it has a checkpoint."""
    source, model = tmp_path / "source", tmp_path / "model"
    shutil.copytree(others / "exported", source)
    words = ["pretrain", f"--init_from={source}", f"--model_dir={model}", *text]
    words += [f"--gin.{binding}" for binding in ("TRAIN_STEPS=24", "BATCH_SIZE=2", "EVAL_EVERY=0")]
    out, state = initial_state(*words)
    (line,) = [line for line in out.splitlines() if line.startswith(f"taken from {source}: BertConfig with 2 layers (")]
    for part in ("hidden_size 16, num_heads 2", "(objectives/mlm_nsp.gin)", "vocabulary of 300 pieces"):
        assert part in line
    assert "instead of" not in line and "all keep their rows" in out
    started = read_run(model)
    assert started.objective.model == read_run(trained.model_dir).objective.model
    assert ([stage.length for stage in started.stages], started.data.vocabulary) == ([24], None)
    theirs, ours = leaves(api.load(trained.model_dir).params), leaves(state.params)
    assert all(np.array_equal(value[:300], ours[name][:300]) for name, value in theirs.items())
    # The folder alone continues a run that was killed before it saved.
    _, again = initial_state("pretrain", f"--model_dir={model}")
    again = leaves(again.params)
    assert ours.keys() == again.keys() and all(np.array_equal(value, again[name]) for name, value in ours.items())
    shutil.copytree(trained.model_dir / "checkpoints/24", model / "checkpoints/24")
    shutil.rmtree(source)
    capsys.readouterr()
    for command in (words, ["pretrain", f"--model_dir={model}"]):
        assert cli.main(command) == 0
        assert capsys.readouterr().out == f"finished already: {model} is at step 24 of 24\n"
    assert read_run(model) == started


def test_a_larger_model_starts_from_a_smaller_one(trained, tmp_path):
    """Layers are stacked, and widths tiled from the middle; the first loss is finite."""
    sizes = {"num_layers": 5, "hidden_size": 24, "num_heads": 3, "feed_forward_size": 36}
    larger = [f"--gin.BertConfig.{name}={size}" for name, size in sizes.items()]
    words = trained.pretrain(tmp_path / "model", f"--cache_dir={trained.model_dir / 'cache'}", *ONE, *larger)
    done = in_process(*words, f"--init_from={trained.model_dir}", "--init_grow=stack", "--gin.Run.log_every=1")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("starts from")]
    wider = "feed_forward_size 32 -> 36, hidden_size 16 -> 24, num_heads 2 -> 3, tiled from the middle"
    assert line.endswith(f"of 300 tokens all keep their rows; num_layers 2 -> 5, stacked; {wider}")
    (first,) = [json.loads(line) for line in (tmp_path / "model/metrics.jsonl").read_text().splitlines() if '"train"' in line]
    assert np.isfinite(first["loss"]) and json.loads((tmp_path / "model/start.json").read_text())["init_grow"] == "stack"
    old, new = (arrays(trained.model_dir, 24), arrays(tmp_path / "model", 1))
    stack, wide, heads, hidden = [0, 1, 0, 1, 0], [*range(12, 16), *range(16), *range(4)], [0, 1, 0], [30, 31, *range(32), 0, 1]
    expected = {
        "['encoder']['layers']['attention']['query']['kernel']": (stack, wide, heads),
        "['encoder']['layers']['attention']['output']['kernel']": (stack, heads, range(8), wide),
        "['encoder']['layers']['feed_forward']['intermediate']['kernel']": (stack, wide, hidden),
        "['encoder']['layers']['feed_forward']['output']['bias']": (stack, wide),
        "['encoder']['embeddings']['word']['table']": (range(300), wide),
        "['encoder']['embeddings']['position']['table']": (range(24), wide),
        "['mlm_head']['dense']['kernel']": (wide, wide),
        "['mlm_head']['bias']": (range(300),),
        "['nsp_head']['dense']['kernel']": (wide, range(2)),
    }
    for name, places in expected.items():
        value, grown = old[f"['params']{name}"], new[f"['params']{name}"]
        rows = grown[:300] if name.endswith(("['table']", "['mlm_head']['bias']")) else grown
        assert np.array_equal(rows, value[np.ix_(*places)]), name


def test_sizes_of_a_run_file_are_replaced_by_those_of_the_folder(trained, text, tmp_path, capsys):
    """The line names them; what the two may have differently, such as dropout, is the file's."""
    lines = ["BertConfig.num_layers = 3", "BertConfig.max_length = 20", "BertConfig.dropout_rate = 0.3"]
    (tmp_path / "own.gin").write_text("\n".join([f"include '{trained.folder / 'run.gin'}'", *lines]))
    words = ["pretrain", f"--gin_file={tmp_path / 'own.gin'}", f"--init_from={trained.model_dir}", *text]
    words += [f"--model_dir={tmp_path / 'model'}", f"--vocab={trained.folder / 'vocab'}", "--gin.TRAIN_STEPS=1"]
    out, _ = initial_state(*words, initialise=False)
    (line,) = [line for line in out.splitlines() if line.startswith("taken from")]
    replaced = [
        f"BertConfig.{name} ({tmp_path / 'own.gin'}:{number})" for name, number in (("num_layers = 3", 2), ("max_length = 20", 3))
    ]
    assert line.endswith(f"; instead of {', '.join(replaced)}") and "vocabulary" not in line
    model = read_run(tmp_path / "model").objective.model
    assert (model.num_layers, model.max_length, model.dropout_rate) == (2, 24, 0.3)
    other = [word for word in words if not word.startswith(("--gin", "--model_dir"))] + [f"--model_dir={tmp_path / 'other'}"]
    assert cli.main([*other, "--gin_file=runs/quickstart_gpt2.gin"]) == 2
    error = capsys.readouterr().err
    assert "@BertConfig()" in error and "objectives/mlm.gin" in error and len(error.splitlines()) == 1
    assert not (tmp_path / "other").exists()


LONGER = {
    "BertConfig": ("", 0),
    "BigBirdConfig": ("BigBirdConfig.block_size = 4\nBigBirdConfig.num_random_blocks = 1", 0),
    "LongformerConfig": ("LongformerConfig.window = (8, 4)\nLongformerConfig.position_offset = 1", 1),
}


@pytest.mark.parametrize("family", LONGER)
def test_a_longer_model_starts_with_repeated_positions(trained, tmp_path, family):
    """It has the sizes of the folder, and the family and the length of the run file; moments are copied in the same way."""
    options, unread = LONGER[family]
    (tmp_path / "run.gin").write_text(f"""
include "objectives/mlm.gin"
include "runs/defaults.gin"
MODEL = @{family}()
{family}.num_layers = 3
{family}.max_length = 64
{options}
Stage.length = 64
""")
    words = ["pretrain", f"--gin_file={tmp_path / 'run.gin'}", f"--cache_dir={trained.model_dir / 'cache'}", *ONE]
    words += ["--gin.BATCH_SIZE=8", f"--model_dir={tmp_path / 'model'}", f"--init_from={trained.model_dir}", "--init_optimizer"]
    out, state = initial_state(*words, initialise=False)
    (line,) = [line for line in out.splitlines() if line.startswith("starts from")]
    assert "positions 24 -> 64 by repetition" in line and line.endswith("; with the optimizer's moments")
    assert ("query_global as a copy of query" in line) == (family == "LongformerConfig")
    # What is taken is the folder's: its family, and its length.
    assert "BertConfig with 2 layers (hidden_size 16, num_heads 2, feed_forward_size 32, max_length 24)" in out
    model = read_run(tmp_path / "model").objective.model
    assert (type(model).__name__, model.num_layers, model.max_length) == (family, 2, 64)
    assert getattr(model, "window", (8, 4)) == (8, 4)
    old, new = arrays(trained.model_dir, 24), leaves({"params": state.params, "rest": {"opt_state": state.opt_state}})
    tables = [name for name in new if "['position']" in name]
    assert len(tables) == 3  # the parameter and its two moments
    for name, value in new.items():
        theirs = old[name.replace("_global", "")]
        if name in tables:
            assert np.array_equal(value[unread:], theirs[np.arange(64) % 24]) and not np.any(value[:unread])
        else:
            count = 300 if has_rows(name) else None
            assert np.array_equal(value[:count], theirs[:count]) if value.ndim else value == theirs, name


def test_another_architecture_in_a_run_file_is_replaced(trained, text, tmp_path):
    words = ["pretrain", "--gin_file=runs/quickstart.gin", f"--init_from={trained.model_dir}", *text, "--gin.Stage.length=24"]
    out, _ = initial_state(*words, f"--model_dir={tmp_path / 'model'}", initialise=False)
    assert "; instead of MODEL = @ModernBertConfig() (" in out and "its vocabulary of 300 pieces" in out
    run = read_run(tmp_path / "model")
    assert (type(run.objective).__name__, type(run.objective.model).__name__, run.total_steps) == ("Mlm", "BertConfig", 3600)


def test_vocabulary_of_an_imported_model_is_that_of_its_folder(others, text, tmp_path, capsys):
    """No command that reads text with --model_dir asks for --vocab."""
    model = tmp_path / "model"
    assert cli.main(["import", f"--input={others / 'exported'}", f"--output={model}"]) == 0
    for command in (["check"], ["preview", "--examples=1", "--stat_rows=1"]):
        assert cli.main([*command, f"--model_dir={model}", *text, "--gin.BATCH_SIZE=2"]) == 0, capsys.readouterr().err
    out, _ = initial_state("pretrain", f"--model_dir={model}", *text, initialise=False)
    assert f"started from the model in {model}" in out
    assert read_run(model).data.vocabulary is None


def test_all_processes_compare_the_flags(trained, tmp_path, monkeypatch):
    """No configuration has these flags; tests/commands/test_pretrain_processes.py shows the message where processes differ."""

    class ComparedError(Exception):
        pass

    def compare(processes, what, lines):
        raise ComparedError(*lines)

    monkeypatch.setattr(Processes, "check_same", compare)
    flags = [f"--init_from={trained.model_dir}", "--init_parts=encoder", "--init_new_rows=random", "--init_optimizer"]
    with pytest.raises(ComparedError) as compared:
        cli.main(trained.pretrain(tmp_path / "model", *flags))
    assert {*flags[:-1], "--init_optimizer=True", f"--model_dir={tmp_path / 'model'}"} <= set(compared.value.args)
