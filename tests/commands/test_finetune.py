"""`bertfam finetune` and `bertfam predict`: from labelled files to a classifier, its predictions and its export."""

import csv
import dataclasses
import json
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pyarrow
import pytest
from jax.experimental.compilation_cache import compilation_cache
from model_folders import arrays, assert_equal_arrays, copy_run, cut
from pyarrow import parquet

import bertfam
from bertfam import cli
from bertfam.commands import predict
from bertfam.data import vocabularies
from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.data.corpora.labelled.tagged_files import TaggedFiles
from bertfam.data.token_cache import digests
from bertfam.data.token_cache.cache import TokenCache
from bertfam.errors import UserError
from bertfam.finetuning import sweep
from bertfam.finetuning.answers import find_answers
from bertfam.finetuning.class_counts import class_counts, constant_warnings
from bertfam.finetuning.predictor import open_predictor
from bertfam.finetuning.survey import survey
from bertfam.interop import huggingface
from bertfam.objectives.fine_tuning.heads import Classification
from bertfam.training.checkpoints import retention
from bertfam.training.model_dir import read_run
from bertfam.training.warm_start.parameters import read_warm_start

SUBJECTS = ("the list", "a module", "this object", "the function", "a class", "the string", "an argument", "the value")
PLACES = ("in the body", "of the module", "at the end", "for each value", "in the class", "of a function", "by default", "here")
# The word that decides, by label.
VERBS = {"good": "returns", "bad": "raises"}


def sentences():
    """Return 128 (text, second text, label): the label is decided by the verb."""
    return [(f"{verb} {subject}", place, label) for subject in SUBJECTS for place in PLACES for label, verb in VERBS.items()]


def write(path, rows, header=("text", "second", "label")):
    delimiter = "\t" if path.suffix == ".tsv" else ","
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL, lineterminator="\n").writerows([header, *rows])
    return path


@pytest.fixture(scope="module")
def untrained(random_model, tmp_path_factory):
    """Return a Hugging Face folder of a BERT of one layer with the values of a new model, which can be trained at high rates."""
    folder = tmp_path_factory.mktemp("untrained")
    imported, generator = huggingface.read(random_model), np.random.default_rng(0)
    config = dataclasses.replace(imported.config, num_layers=1)

    def initial(path, value):
        name = path[-1].key
        value = value[:1] if any(part.key == "layers" for part in path) else value
        draws = 0.02 * generator.standard_normal(value.shape, np.float32)
        return np.ones_like(value) if name == "scale" else 0 * value if name == "bias" else draws

    params = jax.tree.map_with_path(initial, {name: imported.params[name] for name in ("encoder", "pooler")})
    files = [path for path in random_model.iterdir() if path.name not in ("config.json", "model.safetensors")]
    huggingface.write(folder / "model", config, params, tokenizer_files=files)
    return folder / "model"


@pytest.fixture(scope="module")
def classifier(untrained, caches_in_process, tmp_path_factory):
    """Train a classifier of pairs; return its folders and its command line."""
    folder = tmp_path_factory.mktemp("finetune")
    rows = sentences()
    train = write(folder / "train.csv", [row for index, row in enumerate(rows) if index % 8 > 1])
    held_out = write(folder / "dev.csv", [row for index, row in enumerate(rows) if index % 8 < 2])
    words = ["finetune", f"--init_from={untrained}", f"--train={train}", f"--validation={held_out}", "--text_pair=second"]
    words += ["--epochs=8", "--learning_rate=3e-3", "--batch_size=16", "--length=32", f"--model_dir={folder / 'model'}"]
    assert cli.main(words) == 0
    return SimpleNamespace(folder=folder, model_dir=folder / "model", train=train, held_out=held_out, words=words)


def test_a_classifier_learns_the_word_that_decides(classifier, capsys):
    words = ["predict", f"--model_dir={classifier.model_dir}", f"--input={classifier.held_out}", "--label=label", "--json"]
    assert cli.main(words) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["texts"] == 32 and scores["accuracy"] > 0.9 and scores["mcc"] > 0.8


def test_outputs_that_are_no_numbers_are_refused(classifier):
    predictor = open_predictor(classifier.model_dir)
    diverged = dataclasses.replace(predictor, params=jax.tree.map(lambda leaf: np.nan * leaf, predictor.params))
    with pytest.raises(UserError, match=r"the outputs of step 48 are NaN or infinite: its training diverged"):
        diverged.outputs([("He returns the list", "here")])


def test_scores_whose_package_is_missing_are_refused_before_anything_is_predicted(classifier, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("bertfam.finetuning.scores.importlib.util.find_spec", lambda name: None)
    words = ["predict", f"--model_dir={classifier.model_dir}", f"--input={classifier.held_out}", "--label=label"]
    assert cli.main([*words, f"--output={tmp_path / 'out.tsv'}"]) == 2
    assert "scores need scikit-learn: pip install 'bertfam[finetune]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_lengths_of_the_run_follow_from_the_texts(classifier):
    run = read_run(classifier.model_dir)
    assert run.total_steps == 8 * 96 / 16 and run.eval_every == run.checkpoint_every == 96 / 16
    assert run.optimizer.schedule.warmup_steps == round(0.1 * run.total_steps) and run.optimizer.schedule.peak == 3e-3
    assert run.objective.head.classes == ("bad", "good") and run.data.corpus.classes == ("bad", "good")
    evaluations = [json.loads(line) for line in (classifier.model_dir / "metrics.jsonl").read_text().splitlines()]
    assert sum("accuracy" in line and line.get("split") == "eval" for line in evaluations) == 8


def test_the_plan_counts_the_texts_of_each_class(classifier, capsys):
    assert cli.main(["check", f"--model_dir={classifier.model_dir}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "classes      2: bad (48), good (48)" in lines and "train        96 labelled texts, " in "\n".join(lines)
    assert not [line for line in lines if "(0 predicted)" in line]
    (stage,) = [line for line in lines if line.startswith("stage 1")]
    (rows,) = [line for line in lines if line.startswith("lengths")]
    assert " 48 steps of 16 rows x 16 tokens: " in stage  # the longest text has 14
    assert rows.split(None, 1)[1] == "16 tokens (96 rows); 6 batches an epoch, each of rows of similar length"
    run = read_run(classifier.model_dir)
    cache = TokenCache(classifier.model_dir / "cache")
    assert class_counts(run, cache) == {"bad": 48, "good": 48}
    held_out = class_counts(run, cache, "validation")
    share = max(held_out.values()) / sum(held_out.values())
    (warning,) = constant_warnings(run, cache, {"accuracy": share})
    assert f"is not above that of always predicting {max(held_out, key=held_out.get)}, {share:.4f}: " in warning
    assert constant_warnings(run, cache, {"accuracy": share + 0.01}) == constant_warnings(run, cache, {"loss": 1}) == []


@pytest.mark.parametrize(("split", "label"), [("train", 7), ("train", np.inf), ("validation", 0.5), ("validation", -1)])
def test_labels_that_are_no_classes_are_refused_although_the_digests_agree(classifier, tmp_path, capsys, split, label):
    folder = copy_run(classifier.model_dir, tmp_path / "model")
    path = folder / f"cache/text/{split}/labels.bin"
    labels = np.fromfile(path, np.float32)
    labels[3] = label
    labels.tofile(path)
    (folder / "cache/digests.json").write_text(digests.compute(folder / "cache"))
    for command in ("check", "evaluate"):
        assert cli.main([command, f"--model_dir={folder}"]) == 2
        assert f"{path} holds the label {label:g}, which is none of the 2 classes; delete" in capsys.readouterr().err


def test_the_same_command_and_the_folder_alone_resume(classifier, capsys):
    for words in (classifier.words, ["finetune", f"--model_dir={classifier.model_dir}"]):
        assert cli.main(words) == 0
        assert "finished already" in capsys.readouterr().out


@pytest.fixture
def programs(tmp_path):
    """Keep all compiled programs in a new folder, and return it."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in zip(names, (str(tmp_path / "programs"), 0.0), strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield tmp_path / "programs"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_another_task_seed_rate_and_duration_compile_nothing(classifier, programs, tmp_path):
    def train(good, *flags):
        """Train on texts whose classes are `good` and "bad"; return the names of all programs so far."""
        files = [
            write(tmp_path / f"{good}{part}.csv", [(*texts, label.replace("good", good)) for *texts, label in rows])
            for part, rows in (("train", sentences()), ("dev", sentences()[:40]))
        ]
        words = ["finetune", classifier.words[1], "--text_pair=second", "--batch_size=16", "--length=32", *flags]
        assert cli.main([*words, f"--train={files[0]}", f"--validation={files[1]}", f"--model_dir={tmp_path / good}"]) == 0
        return {path.name for path in programs.glob("*-cache")}

    compiled = train("fine", "--epochs=1")
    assert sum(name.startswith(("jit_train_step", "jit_eval_step")) for name in compiled) == 2
    assert train("excellent", "--epochs=2", "--learning_rate=1e-3", "--gin.SEED=3") == compiled


def test_a_run_begun_earlier_keeps_the_rows_of_one_length(classifier, tmp_path, capsys):
    folder = copy_run(classifier.model_dir, tmp_path / "model")
    config, stated = (folder / "config.gin").read_text(), "TextData.similar_lengths = True\n"
    assert config.count(stated) == 1
    (folder / "config.gin").write_text(config.replace(stated, ""))
    (folder / "files.json").unlink()  # has the digest of config.gin
    words = [f"--model_dir={folder}" if word.startswith("--model_dir") else word for word in classifier.words]
    assert cli.main(words) == 0 and not read_run(folder).data.similar_lengths
    assert cli.main(["check", f"--model_dir={folder}"]) == 0
    assert "of 16 rows x 32 tokens" in capsys.readouterr().out
    assert cli.main([*words, "--gin.TextData.similar_lengths=True"]) == 2
    assert "Run.data.similar_lengths was False when this run started and is True now" in capsys.readouterr().err


def test_another_number_of_epochs_is_refused_by_its_flag(classifier, capsys):
    assert cli.main(["--epochs=16" if word.startswith("--epochs") else word for word in classifier.words]) == 2
    assert "--epochs=16 of 96 texts is 96 updates" in capsys.readouterr().err
    assert cli.main(["finetune", f"--model_dir={classifier.folder / 'none'}"]) == 2
    assert "--init_from=DIR and --train=FILE" in capsys.readouterr().err


def test_a_classifier_of_other_classes_starts_with_a_new_head(classifier, tmp_path):
    vocabulary = vocabularies.load(classifier.model_dir / "vocab")
    run = read_run(classifier.model_dir).sized(vocabulary.size)
    for classes, new in ((("bad", "good"), []), (("good", "bad"), ["classifier"]), (("a", "b", "c"), ["classifier"])):
        other = dataclasses.replace(run.objective, head=Classification(classes))
        start = read_warm_start(str(classifier.model_dir), None, dataclasses.replace(run, objective=other), vocabulary)
        assert start.new == new and ("classifier" in start.params) == (not new)
        assert ("new classifier" in start.description) == bool(new)
    with pytest.raises(UserError, match=r"--init_parts=classifier: the classifier of .* has 2 outputs"):
        read_warm_start(str(classifier.model_dir), "classifier", dataclasses.replace(run, objective=other), vocabulary)


def test_tags_in_json_may_be_whole_numbers(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"tokens": ["He", "left"], "tags": [0, 3]}\n')
    assert [tags for _, _, tags in TaggedFiles((str(path),)).records(str(path))] == [["0", "3"]]


def test_parquet_gives_the_cache_and_the_weights_of_the_same_rows(classifier, tmp_path, capsys):
    """The rows of the tables are those of the csv files of the classifier."""
    for path in (classifier.train, classifier.held_out):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{path.stem}.parquet", row_group_size=40)
        json_lines = tmp_path / f"{path.stem}.jsonl"
        json_lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert list(LabelledFiles(str(path)).records(path))[0][1:] == list(LabelledFiles(str(path)).records(json_lines))[0][1:]
    table = tmp_path / "dev.parquet"
    words = [word.replace(str(classifier.folder), str(tmp_path)).replace(".csv", ".parquet") for word in classifier.words]
    assert cli.main(words) == 0
    own, other = tmp_path / "model", classifier.model_dir
    names = [path.relative_to(other) for path in sorted((other / "cache/text").rglob("*.bin"))]
    assert len(names) > 4 and all((own / name).read_bytes() == (other / name).read_bytes() for name in names)
    assert_equal_arrays(arrays(own, 48), arrays(other, 48))
    capsys.readouterr()
    outputs = [tmp_path / f"{number}.tsv" for number in range(2)]
    for model_dir, texts, output in zip((own, other), (table, classifier.held_out), outputs, strict=True):
        words = ["predict", f"--model_dir={model_dir}", f"--input={texts}", "--label=label", f"--output={output}"]
        assert cli.main(words) == 0
    assert outputs[0].read_bytes() == outputs[1].read_bytes()


def test_mistakes_in_parquet_are_named_with_their_row(classifier, random_model, tmp_path, capsys):
    rows = [{"text": "it ends", "label": "good", "image": {"bytes": b"x"}}, {"text": None, "label": "bad", "image": None}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    words = ["finetune", f"--init_from={random_model}", f"--train={tmp_path / 'a.parquet'}", f"--model_dir={tmp_path / 'model'}"]
    for flags, named in (
        ([], "a.parquet: row 2: the field 'text' is null"),
        (["--label=image"], "a.parquet: column 'image' has type struct<bytes: binary>; name one of strings"),
        (["--text_pair=body"], "a.parquet: no column 'body' but text, label, image; name one of them with --text_pair"),
        (["--encoding=latin-1"], "a.parquet: the strings of Parquet are UTF-8; leave --encoding=latin-1 out"),
        (["--tagging"], "a.parquet: no column 'tokens' but text, label, image; "),
        (["--questions", "--format=parquet"], "--format=parquet is none of questions"),
    ):
        assert cli.main([*words, *flags]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert named in line and not (tmp_path / "model").exists()
    words = ["predict", f"--model_dir={classifier.model_dir}", f"--input={tmp_path / 'a.parquet'}"]
    assert cli.main([*words, f"--output={tmp_path / 'out.tsv'}"]) == 2
    assert "a.parquet: no column 'second' but text, label, image; " in capsys.readouterr().err


def test_predictions_are_named_in_the_order_of_the_input(classifier, tmp_path):
    texts = write(tmp_path / "new.csv", [row[:2] for row in sentences()[:5]], ("text", "second"))
    for name in ("out.tsv", "out.csv", "out.jsonl"):
        words = ["predict", f"--model_dir={classifier.model_dir}", f"--input={texts}", "--probabilities"]
        assert cli.main([*words, f"--output={tmp_path / name}"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["prediction"] for line in lines] == [label for _, _, label in sentences()[:5]]
    for line in lines:
        shares = [line["probability of bad"], line["probability of good"]]
        assert sum(shares) == pytest.approx(1) and max(shares) == line["probability"]
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert rows == list(csv.DictReader((tmp_path / "out.tsv").open(), delimiter="\t"))
    assert [row["prediction"] for row in rows] == [line["prediction"] for line in lines]
    assert not list(tmp_path.glob(".*partial*"))


@pytest.mark.parametrize("name", ["go\\rod", "go\\x1b[31mod", "go\\ud83dod"])
def test_names_of_classes_that_break_tables_are_refused(classifier, tmp_path, capsys, name):
    shutil.copytree(classifier.model_dir, tmp_path / "model")
    config = (tmp_path / "model/config.gin").read_text()
    assert "'good'" in config
    (tmp_path / "model/config.gin").write_text(config.replace("'good'", f"'{name}'"))
    (tmp_path / "model/files.json").unlink()  # else the edit is refused
    texts = write(tmp_path / "new.csv", [row[:2] for row in sentences()[:5]], ("text", "second"))
    out = tmp_path / "out.csv"
    assert cli.main(["predict", f"--model_dir={tmp_path / 'model'}", f"--input={texts}", f"--output={out}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "classes has the name 'go" in line and "rename the class" in line and line.isprintable() and not out.exists()


def test_interrupted_predictions_resume(classifier, tmp_path, monkeypatch):
    texts = write(tmp_path / "new.csv", [row[:2] for row in sentences()], ("text", "second"))
    words = ["predict", f"--model_dir={classifier.model_dir}", f"--input={texts}", "--batch_size=8"]
    assert cli.main([*words, f"--output={tmp_path / 'whole.tsv'}"]) == 0
    monkeypatch.setattr("bertfam.finetuning.inference.Inference.at_once", 50)
    outputs, calls = open_predictor(classifier.model_dir).__class__.outputs, []

    def interrupted(self, chunk, batch_size):
        calls.append(len(chunk))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return outputs(self, chunk, batch_size)

    monkeypatch.setattr("bertfam.finetuning.predictor.Predictor.outputs", interrupted)
    again = [*words, f"--output={tmp_path / 'again.tsv'}"]
    assert cli.main(again) == 130
    with open(tmp_path / ".again.tsv.partial", "a") as file:
        file.write("go")  # a line that is not complete
    assert not (tmp_path / "again.tsv").exists()
    assert cli.main(again) == 0
    assert calls == [50, 50, 50, 28]
    assert (tmp_path / "again.tsv").read_text() == (tmp_path / "whole.tsv").read_text()


def test_an_exported_classifier_predicts_the_same_in_transformers(classifier, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    assert cli.main(["export", f"--model_dir={classifier.model_dir}", f"--output={tmp_path / 'out'}"]) == 0
    pipeline = transformers.pipeline("text-classification", str(tmp_path / "out"), device="cpu", top_k=None)
    texts = [(text, second) for text, second, _ in sentences()[:6]]
    outputs = open_predictor(classifier.model_dir).outputs(texts)
    exponentials = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    for (text, second), shares in zip(texts, exponentials / exponentials.sum(axis=1, keepdims=True), strict=True):
        theirs = {found["label"]: found["score"] for found in pipeline({"text": text, "text_pair": second})}
        assert theirs == pytest.approx({"bad": shares[0], "good": shares[1]}, abs=1e-5)
    np.testing.assert_allclose(bertfam.load(tmp_path / "out").predictor.outputs(texts), outputs, atol=1e-5)
    words = ["predict", f"--input={classifier.held_out}", "--text_pair=second"]
    predicted = []
    for folder in (classifier.model_dir, tmp_path / "out"):
        assert cli.main([*words, f"--model_dir={folder}", f"--output={tmp_path / 'predicted.tsv'}"]) == 0
        predicted.append([line.split("\t")[0] for line in (tmp_path / "predicted.tsv").read_text().splitlines()])
        (tmp_path / "predicted.tsv").unlink()
    assert predicted[0] == predicted[1] and {"bad", "good"} < set(predicted[0])


def test_a_loaded_classifier_predicts_lists_of_texts(classifier):
    model = bertfam.load(classifier.model_dir)
    texts = [(text, second) for text, second, _ in sentences()[:6]]
    assert model.predict(texts) == model.predict([list(pair) for pair in texts]) == [label for _, _, label in sentences()[:6]]
    assert model.predict(texts[1:2]) == [sentences()[1][2]] and model.predictor._apply._cache_size() == 2
    shares = model.probabilities(texts)
    assert [max(share, key=share.get) for share in shares] == model.predict(texts)
    assert "pooled" in model.apply(model.vocabulary.encode_prompt("it returns").ids[None])
    for wrong, named in ((["it returns"], "pairs of texts"), ("it returns", "must be a list"), ([("a", 1)], r"texts\[0\]\[1\]")):
        with pytest.raises(UserError, match=named):
            model.predict(wrong)


def test_numbers_are_predicted(random_model, caches_in_process, tmp_path, capsys):
    lines = [{"body": text, "score": 1.5 if label == "good" else -0.5} for text, _, label in sentences()]
    path = tmp_path / "all.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["finetune", f"--init_from={random_model}", f"--train={path}", "--text=body", "--label=score", "--regression"]
    words += ["--epochs=0.5", "--batch_size=16", "--length=16", f"--model_dir={tmp_path / 'model'}"]
    assert cli.main(words) == 0
    capsys.readouterr()
    words = ["predict", f"--model_dir={tmp_path / 'model'}", f"--input={path}", "--label=score", f"--output={tmp_path / 'o.tsv'}"]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert "pearson" in printed and "spearman" in printed
    assert cli.main([*words[:3], f"--output={tmp_path / 'p.tsv'}", "--probabilities"]) == 2
    assert "predicts numbers" in capsys.readouterr().err
    predicted = [float(line) for line in (tmp_path / "o.tsv").read_text().splitlines()[1:]]
    mse = np.mean((np.array(predicted) - [line["score"] for line in lines]) ** 2)
    assert f"mse       {mse:.4f}" in printed


def test_the_best_checkpoint_is_chosen_by_its_held_out_loss(classifier, tmp_path, capsys):
    losses = retention.held_out(classifier.model_dir, "label_loss")
    kept = [int(path.name) for path in (classifier.model_dir / "checkpoints").iterdir()]
    best = min(losses, key=losses.get)
    assert best in kept
    texts = write(tmp_path / "new.csv", [("returns " * 40, "here"), ("it raises", "here")], ("text", "second"))
    words = ["predict", f"--model_dir={classifier.model_dir}", f"--input={texts}", "--step=best"]
    assert cli.main([*words, f"--output={tmp_path / 'out.tsv'}"]) == 0
    printed = capsys.readouterr()
    assert f"2 predictions of step {best}" in printed.out
    assert "1 of 2 texts do not fit into rows of 32 tokens" in printed.err


def test_a_run_that_no_longer_improves_is_finished(classifier, tmp_path, capsys):
    """At this rate no parameter changes, so that the loss of the first evaluation is never improved."""
    changed = {"--epochs": "--epochs=10", "--learning_rate": "--learning_rate=1e-30"}
    words = [changed.get(word.partition("=")[0], word) for word in classifier.words[:-1]]
    words += [f"--model_dir={tmp_path / 'model'}", "--gin.BertConfig.dropout_rate=0.0", "--skip_empty"]
    assert cli.main([*words, "--patience=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3] == "ended after step 18 of 60: label_loss has not improved in 2 evaluations (Run.patience)"
    assert lines[-2].startswith("best label_loss at step 18 (--step=best)  loss ") and lines[-1].startswith("finished: ")
    assert cli.main(["finetune", f"--model_dir={tmp_path / 'model'}"]) == 0
    assert "step 18 of 60: label_loss has not improved in 2 evaluations" in capsys.readouterr().out
    assert cli.main([*words, "--patience=3"]) == 0
    assert "ended after step 24 of 60: label_loss has not improved in 3" in capsys.readouterr().out
    assert cli.main(["generate", f"--model_dir={tmp_path / 'model'}", "it"]) == 2
    assert "use bertfam predict" in capsys.readouterr().err


def test_a_frozen_encoder_keeps_its_weights_and_the_probe_predicts(classifier, untrained, tmp_path, capsys):
    words = [word for word in classifier.words[:-1] if not word.startswith("--epochs")]
    words += ["--epochs=1", "--freeze", "--probe=mix", f"--model_dir={tmp_path / 'model'}"]
    assert cli.main(words) == 0
    assert "new probe, scalar_mix" in capsys.readouterr().out
    ours, theirs = (folder.params["encoder"] for folder in (open_predictor(tmp_path / "model"), huggingface.read(untrained)))
    tables = [params["embeddings"].pop("word")["table"][:2000] for params in (ours, theirs)]  # without the rows of padding
    jax.tree.map(np.testing.assert_array_equal, (ours, tables[0]), (theirs, tables[1]))
    assert cli.main(["export", f"--model_dir={tmp_path / 'model'}", f"--output={tmp_path / 'out'}"]) == 0
    assert "left out probe" in capsys.readouterr().out
    assert cli.main([*words, "--freeze=x"]) == 2


TRAIN = "text\tlabel\nhe returns\tgood\nit raises\tbad\n"


@pytest.mark.parametrize(
    ("content", "flags", "named"),
    [
        ("text\tlabel\none\tgood\ttwo\nb\tbad\n", (), ("train.tsv:2", "3 columns")),
        (TRAIN, ("--text=body",), ("train.tsv:2", "'body'", "text, label")),
        (TRAIN, ("--label=class",), ("train.tsv:2", "'class'", "--label")),
        ("text\tlabel\n\tgood\nb\tbad\n" + 6 * "\tbad\n", (), ("train.tsv:2", "'text' is empty", "tsv:7, ...)", "--skip_empty")),
        ('text\tlabel\n"a\tb"\tgood\n', (), ("train.tsv:2", "3 columns", "save the file as csv")),
        ("text\tlabel\na\t\nb\tbad\n", (), ("train.tsv:2", "label is empty")),
        ("text\tlabel\na\tgood\nb\tgood\n", (), ("train.tsv", "'good'", "two classes")),
        ("text\tlabel\na\t0.5\nb\t1\n", (), ("'0.5'", "--regression")),
        ("text\tlabel\na\t0\nb\t1\nc\t1.0\n", (), ("train.tsv", "'1'", "'1.0'")),
        (TRAIN + "c\tnan\n", (), ("train.tsv", "'nan'", "drop")),
        (TRAIN, ("--regression",), ("train.tsv:2", "'good'")),
        (TRAIN, ("--regression", "--multi_label"), ("--regression and --multi_label",)),
        (TRAIN, ("--epochs=0",), ("--epochs=0",)),
        (TRAIN, ("--length=1000",), ("1000", "max_length 64")),
        (TRAIN, ("--text=label",), ("'label'", "twice")),
        (TRAIN, ("--text={text} {label}",), ("'label'", "twice", "give the label away")),
        (TRAIN, ("--text={text",), ("train.tsv:2", "--text={text has a brace", "'{title}: {body}'")),
        ("text\tlabel\na\tg\x1b[31mood\nb\tbad\n", (), ("train.tsv:2", "control character")),
        ("text\tlabel\na\t1\nb\t-100\n", (), ("train.tsv:3", "-100 marks what has no label")),
        ("text\tlabel\na\t3\nb\t3.0\n", ("--regression",), ("train.tsv: all labels are 3;", "two values")),
        ("", (), ("train.tsv", "no records")),
    ],
)
def test_mistakes_in_labelled_files(random_model, tmp_path, capsys, content, flags, named):
    (tmp_path / "train.tsv").write_text(content)
    words = ["finetune", f"--init_from={random_model}", f"--train={tmp_path / 'train.tsv'}", f"--model_dir={tmp_path / 'model'}"]
    assert cli.main([*words, *flags]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert all(name in line for name in named), line
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("flags", [["--train={file}.jsonl"], ["--train={file}", "--format=jsonl"]])
def test_no_header_goes_only_with_files_that_may_have_one(random_model, tmp_path, capsys, flags):
    words = [flag.format(file=tmp_path / "train") for flag in flags]
    assert cli.main(["finetune", f"--init_from={random_model}", f"--model_dir={tmp_path / 'model'}", "--no_header", *words]) == 2
    assert "--no_header is about the first line of tsv and csv files, and " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "header", "named"),
    [
        ("text\tlabel\n" + 2 * "a\tgood\nb\tbad\n", False, ("train.tsv:1", "'label'", "--no_header")),
        (TRAIN + "c\tGood\n", True, ("'good'", "'Good'")),
        ("text\tlabel\na\t0\nb\t1\nc\t-1\n", True, ("1 text of the class -1",)),
        ("text\tlabel\na\tgood\nb\t-1\n", True, ()),
        (TRAIN + 2 * "same\tbad\n" + "same\tgood\n", True, ("train.tsv:6: the same text", "1 record of 3 different texts")),
        (TRAIN + '"a ""quoted"" word"\tgood\n', True, ("train.tsv:4", "pandas", "csv")),
        (TRAIN, True, ()),
    ],
)
def test_classes_that_are_probably_none_are_named(tmp_path, content, header, named):
    (tmp_path / "train.tsv").write_text(content)
    columns = {} if header else {"text": "1", "label": "2"}
    contents = survey(LabelledFiles((str(tmp_path / "train.tsv"),), header=header, validation_fraction=0.0, **columns))
    assert len(contents.warnings) == bool(named) and all(name in "".join(contents.warnings) for name in named)


def test_files_that_are_probably_meant_otherwise_are_named(tmp_path):
    """Classes that semicolons join, a file of words without blank lines, and held-out texts that are training texts."""
    contents = {
        "train.tsv": "text\tlabel\na\tjoy;fear\nb\tjoy\n",
        "dev.tsv": "text\tlabel\na\tjoy\n",
        "t.conll": 61 * "he O\nX A\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    train, dev, words = (str(tmp_path / name) for name in contents)
    labelled = LabelledFiles((train,), kind="classes", validation_fraction=0.0)
    assert "no text has two classes, and 1 name such as 'joy;fear' may be" in "".join(survey(labelled).warnings)
    (tmp_path / "train.tsv").write_text(contents["train.tsv"].replace(";", ","))
    assert not survey(labelled).warnings
    (line,) = survey(LabelledFiles((train,), (dev,), kind="classes")).warnings
    assert line.startswith(f"{dev}: 1 of the 1 held-out text is a training text too")
    assert survey(TaggedFiles((words,), validation_fraction=0.0)).warnings == [
        f"no blank line ends a sentence in {words}, so its 122 words are one: put one after each sentence"
    ]


def test_an_unseen_label_of_held_out_texts_is_named(random_model, tmp_path, capsys):
    (tmp_path / "train.tsv").write_text(TRAIN)
    (tmp_path / "dev.tsv").write_text("text\tlabel\nit ends\tugly\n")
    words = ["finetune", f"--init_from={random_model}", f"--train={tmp_path / 'train.tsv'}"]
    assert cli.main([*words, f"--validation={tmp_path / 'dev.tsv'}", f"--model_dir={tmp_path / 'model'}"]) == 2
    assert not (tmp_path / "model").exists()
    assert "dev.tsv:2: the label 'ugly' is not among the training labels bad, good" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--label=label",), "unseen"),
        ((), "--output"),
        (("--output=out.xlsx",), ".jsonl"),
        (("--probabilities", "--label=label"), "--output"),
        (("--text=body", "--output=out.tsv"), "'body'"),
    ],
)
def test_mistakes_of_predict(classifier, tmp_path, capsys, monkeypatch, flags, named):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "new.csv", [("it ends", "here", "unseen")])
    assert cli.main(["predict", f"--model_dir={classifier.model_dir}", "--input=new.csv", *flags]) == 2
    assert named in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


def test_files_without_a_header_are_predicted_by_numbers_or_names(classifier, tmp_path):
    rows = [row[:2] for row in sentences()[:3]]
    lines = [",".join(row) + "\n" for row in rows]
    (tmp_path / "plain.csv").write_text("".join(lines))
    (tmp_path / "headed.csv").write_text("a,b\n" + "".join(lines))
    trained = dataclasses.replace(open_predictor(classifier.model_dir).corpus, header=False, text="1", text_pair="2")
    for name, flags in (("plain", {}), ("plain", {"text": "1"}), ("headed", {"text": "a", "text_pair": "b"})):
        args = {
            "text": None,
            "text_pair": None,
            "label": None,
            "record_format": None,
            "no_header": False,
            "record_encoding": None,
            "target": None,
            "beams": None,
            "rag": None,
            "passages": None,
        }
        args |= {"input": [str(tmp_path / f"{name}.csv")], "probabilities": False, "output": None, "batch_size": 1} | flags
        inference = predict._open_inference(SimpleNamespace(**args), SimpleNamespace(corpus=trained))
        assert [tuple(texts) for texts, _ in inference.items()] == rows


def test_other_folders_predict_nothing(random_model, tmp_path, capsys):
    (tmp_path / "new.tsv").write_text("text\nit ends\n")
    for folder, named in ((random_model, f"bertfam finetune --init_from={random_model}"), (tmp_path / "none", "none")):
        words = ["predict", f"--model_dir={folder}", f"--input={tmp_path / 'new.tsv'}", f"--output={tmp_path / 'out.tsv'}"]
        assert cli.main(words) == 2
        assert named in capsys.readouterr().err


@pytest.fixture(scope="module")
def tagger(untrained, caches_in_process, tmp_path_factory):
    """Train on sentences whose verbs are named entities; return its folder and its held-out file."""
    folder = tmp_path_factory.mktemp("tagging")
    sentences_of_words = [f"{text} {second}".split() for text, second, _ in sentences()]
    tags = {"returns": "B-GOOD", "raises": "B-BAD"}
    lines = ["".join(f"{word}\t{tags.get(word, 'O')}\n" for word in words) + "\n" for words in sentences_of_words]
    (folder / "train.conll").write_text("-DOCSTART-\tO\n\n" + "".join(lines[:96]))
    (folder / "dev.conll").write_text("".join(lines[96:]))
    words = ["finetune", f"--init_from={untrained}", "--tagging", f"--train={folder / 'train.conll'}"]
    words += [f"--validation={folder / 'dev.conll'}", "--epochs=4", "--learning_rate=1e-2", "--batch_size=16", "--length=16"]
    assert cli.main([*words, f"--model_dir={folder / 'model'}"]) == 0
    return SimpleNamespace(folder=folder, model_dir=folder / "model", held_out=folder / "dev.conll")


def test_a_tagger_finds_the_entities_of_each_sentence(tagger, tmp_path, capsys):
    words = ["predict", f"--model_dir={tagger.model_dir}", f"--input={tagger.held_out}", "--label=2", "--json"]
    assert cli.main([*words, f"--output={tmp_path / 'out.conll'}"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert scores["texts"] == 32 and scores["f1"] > 0.9 and scores["accuracy"] > 0.95
    written, given = (path.read_text().splitlines() for path in (tmp_path / "out.conll", tagger.held_out))
    assert [line.partition("\t")[0] for line in written] == [line.partition("\t")[0] for line in given]
    right = sum(one == other for one, other in zip(written, given, strict=True) if one)
    assert scores["accuracy"] == pytest.approx(right / sum(map(bool, written)))


def test_long_sentences_are_tagged_in_pieces(tagger):
    predictor, words = open_predictor(tagger.model_dir), [word for text, _, _ in sentences()[:8] for word in text.split()]
    (outputs,) = predictor.word_outputs([words])
    assert len(words) > predictor.length and len(outputs) == len(words) and outputs.any(axis=1).all()
    model = bertfam.load(tagger.model_dir)
    (tags,) = model.predict([words])
    with pytest.raises(UserError, match=r"texts\[0\] must be a list of words, not one text: write \['He', 'left'\]"):
        model.predict(["He left"])
    assert tags == [predictor.objective.head.classes[index] for index in outputs.argmax(axis=1)]


def test_an_exported_tagger_tags_the_same_in_transformers(tagger, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    assert cli.main(["export", f"--model_dir={tagger.model_dir}", f"--output={tmp_path / 'out'}"]) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "out"))
    model = transformers.AutoModelForTokenClassification.from_pretrained(str(tmp_path / "out")).eval()
    assert sorted(model.config.id2label.values()) == ["B-BAD", "B-GOOD", "O"]
    words = [f"{text} {second}".split()[:5] for text, second, _ in sentences()[:4]]
    for own, outputs in zip(words, open_predictor(tagger.model_dir).word_outputs(words), strict=True):
        encoded = tokenizer(own, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            logits = model(**encoded).logits[0].numpy()
        first = [encoded.word_ids(0).index(word) for word in range(len(own))]
        np.testing.assert_allclose(outputs, logits[first], atol=1e-4)


@pytest.mark.parametrize(
    ("name", "content", "flags", "named"),
    [
        ("t.conll", "he\tO\nreturns\n\n", (), ("t.conll:2", "1 column,", "column 2")),
        ("t.conll", "he\tO\nends\tO\n", (), ("t.conll", "all tags are 'O'")),
        ("t.jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}\n', (), ("t.jsonl:1", "2 words and 1 tag")),
        ("t.jsonl", '{"tokens": "a b", "tags": ["O"]}\n', (), ("t.jsonl:1", "'tokens'")),
        ("t.conll", "he\tO\n", ("--text=word",), ("--text=word", "counted from 1")),
        ("t.conll", "he\tO\n", ("--text_pair=3",), ("--text_pair",)),
        ("t.conll", "he\tO\n", ("--format=csv",), ("--format=csv", "conll")),
        ("t.conll", "he\tO\n", ("--regression",), ("--regression and --tagging",)),
        ("t.conll", "\n\n", (), ("t.conll", "no records")),
    ],
)
def test_mistakes_in_tagged_files(random_model, tmp_path, capsys, name, content, flags, named):
    (tmp_path / name).write_text(content)
    words = ["finetune", f"--init_from={random_model}", "--tagging", f"--train={tmp_path / name}"]
    assert cli.main([*words, f"--model_dir={tmp_path / 'model'}", *flags]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert all(part in line for part in named), line
    assert not (tmp_path / "model").exists()


def question_file(path, contexts):
    """Write questions after what is returned; there is no answer where the context says raises."""
    paragraphs = []
    for number, (subject, place, label) in enumerate(contexts):
        context = f"{place} it {VERBS[label]} {subject} {place}"
        answers = [{"text": subject, "answer_start": context.index(subject)}] if label == "good" else []
        qas = [{"id": f"q{number}", "question": "what is it", "answers": answers, "is_impossible": not answers}]
        paragraphs.append({"context": context, "qas": qas})
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return path


@pytest.fixture(scope="module")
def reader(untrained, caches_in_process, tmp_path_factory):
    """Train on questions; return its folder and its held-out file."""
    folder = tmp_path_factory.mktemp("questions")
    contexts = [(subject, place, label) for subject in SUBJECTS for place in PLACES for label in VERBS]
    train = question_file(folder / "train.json", [one for index, one in enumerate(contexts) if index % 8 > 1])
    held_out = question_file(folder / "dev.json", [one for index, one in enumerate(contexts) if index % 8 < 2])
    words = ["finetune", f"--init_from={untrained}", "--questions", f"--train={train}", f"--validation={held_out}"]
    words += ["--epochs=20", "--learning_rate=1e-2", "--batch_size=16", "--length=32", "--gin.BertConfig.dropout_rate=0.0"]
    words += [
        "--gin.EVAL_EVERY=1000",
        "--gin.CHECKPOINT_EVERY=1000",
        "--gin.AnswerWindows.max_question=8",
        "--gin.AnswerWindows.stride=8",
        f"--model_dir={folder / 'model'}",
    ]
    assert cli.main(words) == 0
    return SimpleNamespace(folder=folder, model_dir=folder / "model", held_out=held_out)


def test_a_reader_finds_answers_and_their_absence(reader, tmp_path, capsys):
    for name in ("out.json", "out.jsonl"):
        words = ["predict", f"--model_dir={reader.model_dir}", f"--input={reader.held_out}", "--label=answers", "--json"]
        assert cli.main([*words, f"--output={tmp_path / name}"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert scores["texts"] == 32 and scores["exact"] > 90 and scores["answerable_f1"] > 90 and scores["unanswerable_f1"] > 90
    answers = json.loads((tmp_path / "out.json").read_text())
    questions = [paragraph for paragraph in json.loads(reader.held_out.read_text())["data"][0]["paragraphs"]]
    right = sum(
        answers[qa["id"]] == (qa["answers"][0]["text"] if qa["answers"] else "") for one in questions for qa in one["qas"]
    )
    assert 100 * right / len(questions) == pytest.approx(scores["exact"])
    for line, paragraph in zip((tmp_path / "out.jsonl").read_text().splitlines(), questions, strict=True):
        record = json.loads(line)
        assert record["prediction"] == answers[record["id"]]
        text = record["prediction"]
        assert paragraph["context"][record["begin"] :].startswith(text)


def test_an_exported_reader_gives_the_same_outputs_in_transformers(reader, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    assert cli.main(["export", f"--model_dir={reader.model_dir}", f"--output={tmp_path / 'out'}"]) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "out"))
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(str(tmp_path / "out")).eval()
    predictor, loaded = open_predictor(reader.model_dir), bertfam.load(reader.model_dir)
    for number in range(3):
        context = f"here it returns {SUBJECTS[number]} by default"
        (answer,) = find_answers(predictor, [("what is it", context)])
        assert loaded.predict([("what is it", context)]) == [answer.text]
        encoded = tokenizer("what is it", context, return_tensors="pt", return_offsets_mapping=True)
        offsets = encoded.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            outputs = model(**encoded)
        starts, ends = outputs.start_logits[0].numpy(), outputs.end_logits[0].numpy()
        places = [place for place, id in enumerate(encoded.sequence_ids(0)) if id == 1]
        score, first, last = max((starts[i] + ends[j], i, j) for i in places for j in places if i <= j)
        assert answer.score == pytest.approx(score, abs=1e-4)
        assert answer.text == context[offsets[first][0] : offsets[last][1]]
        assert answer.no_answer_score == pytest.approx(starts[0] + ends[0], abs=1e-4)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--text=body",), "--text does not go with questions"),
        (("--format=tsv",), "--format=tsv"),
        (("--length=16",), "length 16 is too short"),
        (("--tagging",), "--tagging and --questions"),
    ],
)
def test_mistakes_in_questions(random_model, tmp_path, capsys, flags, named):
    path = question_file(tmp_path / "train.json", [("the list", "here", "good")])
    words = ["finetune", f"--init_from={random_model}", "--questions", f"--train={path}", f"--model_dir={tmp_path / 'model'}"]
    assert cli.main([*words, *flags]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_low_rank_adapters_are_trained_resumed_and_merged_in_exports(classifier, untrained, tmp_path, capsys):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    model_dir, copy = tmp_path / "model", tmp_path / "copy"
    words = ["finetune", f"--init_from={untrained}", f"--train={classifier.train}", f"--validation={classifier.held_out}"]
    words += ["--text_pair=second", "--epochs=1", "--learning_rate=1e-2", "--batch_size=16", "--length=32", "--lora=2"]
    words += ["--gin.Run.keep_checkpoints=None", "--gin.CHECKPOINT_EVERY=3"]
    assert cli.main([*words, f"--model_dir={model_dir}"]) == 0
    config, trained = json.loads((untrained / "config.json").read_text()), arrays(model_dir, 6)
    width, hidden, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    adapters = layers * 2 * (4 * 2 * width + 2 * (width + hidden))
    heads = (width + 1) * (width + 2)
    assert f", of which {adapters + heads:,} (" in capsys.readouterr().out.splitlines()[0]
    assert not [name for name in trained if "opt_state" in name and "encoder" in name and "adapters" not in name]
    begin = arrays(model_dir, 3)
    same = {name for name in begin if np.array_equal(begin[name], trained[name])}
    assert {name for name in begin if name.startswith("['params']['encoder']")} == {name for name in same if "params" in name}

    cut(model_dir, copy, 3)
    assert cli.main([*words, f"--model_dir={copy}"]) == 0
    assert "resumed from step 3" in capsys.readouterr().out
    assert_equal_arrays(arrays(copy, 6), trained)

    assert cli.main(["export", f"--model_dir={model_dir}", f"--output={tmp_path / 'out'}"]) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "out"))
    exported = transformers.AutoModelForSequenceClassification.from_pretrained(str(tmp_path / "out")).eval()
    texts = [(text, second) for text, second, _ in sentences()[:6]]
    with torch.no_grad():
        theirs = exported(**tokenizer(*map(list, zip(*texts, strict=True)), return_tensors="pt", padding=True)).logits
    np.testing.assert_allclose(open_predictor(model_dir).outputs(texts), theirs.numpy(), atol=1e-5)
    assert "adapters" not in bertfam.load(model_dir).params

    export = ["export", f"--model_dir={model_dir}", f"--output={tmp_path / 'adapter'}"]
    for base, problem in ((model_dir, "is a model folder of bertfam"), (tmp_path / "out", "is not that of the network")):
        assert cli.main([*export, f"--adapter_of={base}"]) == 2
        assert problem in capsys.readouterr().err and not (tmp_path / "adapter").exists()
    assert cli.main([*export, f"--adapter_of={untrained}"]) == 0
    names = {"README.md", "adapter_config.json", "adapter_model.safetensors", "config.json", "tokenizer.json"}
    assert names <= {path.name for path in (tmp_path / "adapter").iterdir()} and f"from {untrained}" in capsys.readouterr().out
    settings = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(untrained) and settings["task_type"] == "SEQ_CLS"
    labels = json.loads((tmp_path / "adapter/config.json").read_text())["id2label"]
    assert labels == {"0": "bad", "1": "good"} and "PeftModel.from_pretrained" in (tmp_path / "adapter/README.md").read_text()
    with pytest.raises(UserError, match="is an adapter, without its model"):
        huggingface.read(tmp_path / "adapter")


def test_a_model_without_adapters_has_none_to_export(classifier, untrained, tmp_path, capsys):
    words = ["export", f"--model_dir={classifier.model_dir}", f"--output={tmp_path / 'out'}", f"--adapter_of={untrained}"]
    assert cli.main(words) == 2
    assert "has no adapters" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--lora=0",), "Lora.rank is 0"),
        (("--lora=32",), "--lora=32 is no low rank: BertConfig.hidden_size is 32"),
        (("--lora=4", "--lora_alpha=-1"), "Lora.alpha is -1"),
        (("--lora_alpha=4",), "give --lora=RANK with it"),
        (("--lora=4", "--freeze"), "FineTuning.freeze and FineTuning.lora"),
    ],
)
def test_mistakes_in_adapters(classifier, untrained, tmp_path, capsys, flags, named):
    words = ["finetune", f"--init_from={untrained}", f"--train={classifier.train}", f"--model_dir={tmp_path / 'model'}"]
    assert cli.main([*words, *flags]) == 2
    assert named in capsys.readouterr().err and not (tmp_path / "model").exists()


def test_long_texts_are_windows_whose_outputs_are_averaged(untrained, tmp_path, capsys):
    texts = [" ".join(f"{verb} {subject} here" for subject in SUBJECTS[:count]) for verb in VERBS.values() for count in (2, 5, 8)]
    rows = [(text, "bad" if "raises" in text else "good") for text in texts]
    path = write(tmp_path / "long.csv", rows, ("text", "label"))
    held_out = write(tmp_path / "held-out.csv", rows[1:], ("text", "label"))
    words = ["finetune", f"--init_from={untrained}", f"--train={path}", f"--validation={held_out}", "--epochs=1"]
    assert cli.main([*words, "--batch_size=4", "--length=16", "--stride=9", f"--model_dir={tmp_path / 'model'}"]) == 0
    predictor = open_predictor(tmp_path / "model")
    token_ids = predictor.vocabulary.token_ids
    ids = [predictor.vocabulary.encode(text).ids for text in texts]
    windows = [[own[first : first + 14] for first in range(0, max(1, len(own) - 14 + 9), 9)] for own in ids]
    printed = capsys.readouterr().out
    assert f"rows         {sum(map(len, windows))} of 6 labelled texts" in printed and "cut off" not in printed
    flat = [window for own in windows for window in own]
    rows, zeros = np.zeros((2, len(flat), 16), np.int32)
    for row, window in zip(rows, flat, strict=True):
        row[: len(window) + 2] = [token_ids.cls, *window, token_ids.sep]
    batch = {"encoder_input_tokens": rows, "encoder_segment_ids": np.int32(rows != token_ids.pad)}
    batch |= {"encoder_token_type_ids": zeros, "sequence_start_positions": zeros[:, :1]}
    outputs = np.split(predictor._apply(predictor.params, batch), np.cumsum(list(map(len, windows)))[:-1])
    expected = [own.mean(axis=0) for own in outputs]
    np.testing.assert_allclose(predictor.outputs([[text] for text in texts]), expected, atol=1e-6)
    assert cli.main(["predict", f"--model_dir={tmp_path / 'model'}", f"--input={path}", "--label=label", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["texts"] == 6 and "do not fit" not in printed.err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--stride=0",), "TextWindows.stride is 0"),
        (
            ("--stride=40", "--length=32"),
            "error: --stride=40 (TextWindows.stride) is more than the 30 tokens of a text in",
        ),
        (("--stride=8", "--text_pair=second"), "--stride=8: windows are of single texts with labels"),
    ],
)
def test_mistakes_in_windows(classifier, untrained, tmp_path, capsys, flags, named):
    words = ["finetune", f"--init_from={untrained}", f"--train={classifier.train}", f"--model_dir={tmp_path / 'model'}"]
    assert cli.main([*words, *flags]) == 2
    assert named in capsys.readouterr().err and not (tmp_path / "model/config.gin").exists()


def test_rates_are_listed_from_the_best_down():
    scores = {1e-5: {0: {"accuracy": 0.5, "label_loss": 1.0}, 1: {"accuracy": 0.7, "label_loss": 2.0}}}
    scores |= {3e-4: {0: {"accuracy": 0.9, "label_loss": 4.0}, 1: {"accuracy": 0.9, "label_loss": 5.0}}}
    by_accuracy, by_loss = (sweep.rates_table(scores, name) for name in ("accuracy", "label_loss"))
    assert [line.split()[0] for line in by_accuracy] == ["learning_rate", "0.0003", "1e-05"]
    assert [line.split()[0] for line in by_loss] == ["learning_rate", "1e-05", "0.0003"]
    assert [float(value) for value in by_loss[1].split()[1:]] == [0.6, 0.6, 0.1414, 1.5, 1.5, 0.7071]
    alone = sweep.rates_table({rate: {0: seeds[0]} for rate, seeds in scores.items()}, "loss")
    assert alone[0].split() == ["learning_rate", "accuracy", "label_loss"] and alone[1].split() == ["0.0003", "0.9000", "4.0000"]


def test_several_rates_are_trained_and_listed(classifier, untrained, tmp_path, capsys):
    words = ["finetune", f"--init_from={untrained}", f"--train={classifier.train}", f"--validation={classifier.held_out}"]
    words += ["--text_pair=second", "--epochs=0.5", "--batch_size=16", "--length=32", "--learning_rate=1e-30,1e-3"]
    assert cli.main([*words, f"--model_dir={tmp_path / 'runs'}"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[-3:]]
    losses = {rate: sweep.kept_scores(tmp_path / f"runs/rate_{rate}")["label_loss"] for rate in ("0.001", "1e-30")}
    assert [line[0] for line in lines] == ["learning_rate", *sorted(losses, key=losses.get)]
    assert [float(line[-1]) for line in lines[1:]] == pytest.approx(sorted(losses.values()), abs=1e-4)
    assert cli.main([*words[:-1], "--learning_rate=1e-5,x", f"--model_dir={tmp_path / 'x'}"]) == 2


def test_several_seeds_are_summarised(classifier, untrained, tmp_path, capsys):
    words = ["finetune", f"--init_from={untrained}", f"--train={classifier.train}", f"--validation={classifier.held_out}"]
    words += ["--text_pair=second", "--epochs=0.5", "--batch_size=16", "--length=32", "--learning_rate=1e-3", "--seeds=3,5"]
    assert cli.main([*words, f"--model_dir={tmp_path / 'runs'}"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[-8:]]
    rows = {name: dict(zip(lines[0][1:], map(float, values), strict=True)) for name, *values in lines[1:]}
    losses = [sweep.kept_scores(tmp_path / f"runs/seed_{seed}")["label_loss"] for seed in (3, 5)]
    assert losses[0] != losses[1]
    assert [rows["3"]["label_loss"], rows["5"]["label_loss"]] == pytest.approx(losses, abs=1e-4)
    expected = {"mean": np.mean(losses), "median": np.median(losses), "deviation": np.std(losses, ddof=1)}
    assert {name: rows[name]["label_loss"] for name in expected} == pytest.approx(expected, abs=1e-4)
    assert [read_run(tmp_path / f"runs/seed_{seed}").seed for seed in (3, 5)] == [3, 5]
    assert cli.main([*words, f"--model_dir={tmp_path / 'runs/seed_3'}"]) == 2
    assert len(sweep.table({3: {"accuracy": 0.5}})) == 2  # one seed has no spread
    assert (
        sweep.title(tmp_path / "runs/seed_3") == "held-out scores of each run's checkpoint with the best label_loss (--step=best)"
    )
    # Another evaluation of the same run, whose checkpoint is not the best.
    worse = {"step": 1, "split": "eval", "label_loss": 99.0, "accuracy": 0.0}
    best = sweep.kept_scores(tmp_path / "runs/seed_3")
    metrics = tmp_path / "runs/seed_3/metrics.jsonl"
    metrics.write_text(metrics.read_text() + json.dumps(worse | {"step": 10_000}) + "\n")
    assert sweep.kept_scores(tmp_path / "runs/seed_3") == best
