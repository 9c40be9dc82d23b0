"""`bertfam finetune --target` and `bertfam predict`: from files of texts with targets to generated texts and exports."""

import csv
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import linen as nn
from initial_state import skip_initialisation
from tokenizers.pre_tokenizers import ByteLevel

import bertfam
from bertfam import cli
from bertfam.data.vocabularies.byte_bpe import ByteBpe
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.errors import UserError
from bertfam.finetuning.predictor import open_fine_tuned
from bertfam.finetuning.scores import score_targets
from bertfam.interop import huggingface
from bertfam.models.gpt2 import Gpt2Config
from bertfam.models.language_model import init_language_model
from bertfam.models.t5 import T5Config
from bertfam.training.model_dir import read_run

# kind -> config without the size of its vocabulary, and layout of the vocabulary
SIZES = {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "feed_forward_size": 64}
KINDS = {
    "T5": (T5Config(**SIZES, head_dim=16, dropout_rate=0.0), "t5"),
    "GPT-2": (Gpt2Config(**SIZES, max_length=48, embedding_dropout_rate=0.0, dropout_rate=0.0), "gpt2"),
}
# The first word decides.
ANSWERS = {"list": "a lot", "none": "no", "one": "it"}
RESTS = ("of it", "here", "in all", "at last", "by now", "as is", "so far", "again")


def pairs():
    return [(f"{word} {rest}", answer) for rest in RESTS for word, answer in ANSWERS.items()]


def write(path, rows, header=("article", "summary")):
    delimiter = "," if path.suffix == ".csv" else "\t"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([header, *rows])
    return path


@pytest.fixture(autouse=True, scope="module")
def fast_compilation():
    jax.config.update("jax_disable_most_optimizations", True)
    with pytest.MonkeyPatch.context() as patch:
        skip_initialisation(patch)
        yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """Return the Hugging Face folder of a new model of each kind."""
    folders = {}
    for kind, (config, layout) in KINDS.items():
        controls, folder = LAYOUTS[layout], tmp_path_factory.mktemp("untrained")
        vocabulary = ByteBpe([*controls.first, *sorted(ByteLevel.alphabet()), *controls.last], [], layout=controls)
        config = config.sized(vocabulary.size)
        params = nn.unbox(jax.jit(lambda key, config=config: init_language_model(config, key))(jax.random.key(0)))
        vocabulary.save(folder / "vocab")
        files = sorted((folder / "vocab").iterdir())
        extra = huggingface.special_ids(config, vocabulary)
        huggingface.write(folder / "model", config, jax.device_get(params), tokenizer_files=files, extra=extra)
        folders[kind] = folder / "model"
    return folders


@pytest.fixture(scope="module", params=KINDS)
def tuned(request, untrained, caches_in_process, tmp_path_factory):
    """Train a model of each kind; return its folder and its files."""
    folder = tmp_path_factory.mktemp("targets")
    train = write(folder / "train.tsv", pairs())
    held_out = write(folder / "dev.csv", pairs()[:6])
    words = ["finetune", f"--init_from={untrained[request.param]}", f"--train={train}", f"--validation={held_out}"]
    words += ["--text=Q: {article} A:", "--target=summary", "--length=32", "--target_length=8"]
    words += ["--epochs=100", "--learning_rate=1e-2", "--batch_size=24", "--gin.Run.eval_every=0", "--gin.Run.keep_best=None"]
    words += ["--gin.CHECKPOINT_EVERY=100"]
    assert cli.main([*words, f"--model_dir={folder / 'model'}"]) == 0
    return SimpleNamespace(model_dir=folder / "model", held_out=held_out, train=train)


def test_targets_are_generated_from_file_to_file(tuned, tmp_path, capsys):
    words = ["predict", f"--model_dir={tuned.model_dir}", f"--input={tuned.train}", "--batch_size=24"]
    assert cli.main([*words, f"--output={tmp_path / 'out.tsv'}"]) == 0
    assert (tmp_path / "out.tsv").read_text().splitlines() == ["prediction", *(target for _, target in pairs())]
    model = bertfam.load(tuned.model_dir)
    assert model.predict([text for text, _ in pairs()[:4]]) == [target for _, target in pairs()[:4]]
    assert model.predict([{"article": pairs()[0][0]}]) == [pairs()[0][1]]
    with pytest.raises(UserError, match=r"the columns article"):
        model.predict([{"body": "one"}])
    run = read_run(tuned.model_dir)
    assert run.total_steps == 100 and run.optimizer.schedule.peak == 1e-2 and run.data.corpus.target == "summary"
    assert run.data.shape(32).targets == (8 if run.objective.network == "encoder_decoder" else 32)


def test_exported_models_generate_the_same_texts_in_transformers(tuned, tmp_path):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    assert cli.main(["export", f"--model_dir={tuned.model_dir}", f"--output={tmp_path / 'out'}"]) == 0
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    kind = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    # Texts that no one has trained the model on, too.
    texts = [f"Q: {text} A:" for text in [pairs()[0][0], pairs()[1][0], "lots of it", "none one list"]]
    for text, found in zip(texts, open_fine_tuned(tuned.model_dir).generate(texts), strict=True):
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            (theirs,) = model.generate(ids, max_new_tokens=8, do_sample=False).tolist()
        new = theirs[1:] if config.is_encoder_decoder else theirs[ids.shape[1] :]
        assert new == found.tokens
        assert tokenizer.decode(new, skip_special_tokens=True).strip() == found.text


def test_scores_and_beams(tuned, tmp_path, capsys):
    pytest.importorskip("sacrebleu")
    words = ["predict", f"--model_dir={tuned.model_dir}", f"--input={tuned.held_out}", "--target=summary", "--batch_size=8"]
    assert cli.main([*words, "--json", "--beams=2", f"--output={tmp_path / 'out.jsonl'}"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert scores["texts"] == 6 and scores["exact_match"] == 1 and [scores["bleu"], scores["chrf"]] == pytest.approx([100, 100])
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines == [{"prediction": target} for _, target in pairs()[:6]]


def test_scores_of_texts():
    pytest.importorskip("sacrebleu")
    texts, targets = ["the cat sat on the mat", "a dog"], ["the cat sat on a mat", "a  dog"]
    scores = score_targets(texts, targets)
    # 7 of 8 words, 4 of 6 pairs, 2 of 4 triples, 1 of 3 of four words; equal lengths have no penalty.
    assert scores["bleu"] == pytest.approx(100 * (7 / 8 * 4 / 6 * 2 / 4 * 1 / 3) ** 0.25)
    assert scores["exact_match"] == 0.5 and 50 < scores["chrf"] < 100
    # Texts without four words have no fourth order.
    assert score_targets(["no"], ["no"])["bleu"] == pytest.approx(100)


TRAIN = "text\ttarget\nhe returns\tit returns\nshe raises\tit raises\n"


@pytest.mark.parametrize(
    ("content", "flags", "named"),
    [
        (TRAIN, ("--text=body",), ("train.tsv:2", "'body'", "--text")),
        (TRAIN, ("--target=summary",), ("train.tsv:2", "'summary'", "--target")),
        (TRAIN + "it\t\n", (), ("train.tsv:4", "'target' is empty", "--skip_empty")),
        (TRAIN + "\tit\n", ("--text=Q: {text}",), ("train.tsv:4", "'text' is empty")),
        (TRAIN, ("--text=target",), ("'target'", "twice")),
        (TRAIN, ("--label=text",), ("--label does not go with texts with targets",)),
        (TRAIN, ("--regression",), ("--regression and --target",)),
        (TRAIN, ("--length=64",), ("64 tokens", "max_length is 48", "--length")),
        (TRAIN, ("--length=8", "--target_length=8"), ("8 tokens", "--target_length")),
        (TRAIN, ("--target_length=1",), ("--target_length=1", "at least 2")),
        ("", (), ("train.tsv", "no documents")),
    ],
)
def test_mistakes_in_files_of_targets(untrained, tmp_path, capsys, content, flags, named):
    (tmp_path / "train.tsv").write_text(content)
    words = ["finetune", f"--init_from={untrained['GPT-2']}", f"--train={tmp_path / 'train.tsv'}"]
    flags = flags if any(flag.startswith("--target=") for flag in flags) else ("--target=target", *flags)
    assert cli.main([*words, f"--model_dir={tmp_path / 'model'}", *flags]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert all(name in line for name in named), line
    assert not (tmp_path / "model").exists()


def test_flags_that_do_not_go_with_the_model(untrained, random_model, tmp_path, capsys):
    train = write(tmp_path / "train.tsv", pairs())
    for folder, flags, named in (
        (random_model, ["--target=summary"], "is an encoder, which generates none"),
        (random_model, ["--label=summary", "--lm_weight=0.5"], "FineTuning.lm (--lm_weight) is 0.5, and this BertConfig is no"),
        (untrained["GPT-2"], ["--target=summary", "--freeze"], "--freeze does not go with texts with targets"),
        (untrained["T5"], ["--label=summary", "--target_length=9"], "--target_length describes targets"),
    ):
        words = ["finetune", f"--init_from={folder}", f"--train={train}", "--text=article", *flags]
        assert cli.main([*words, f"--model_dir={tmp_path / 'model'}"]) == 2
        assert named in capsys.readouterr().err


def test_a_predictor_of_targets_refuses_flags_of_labels(tuned, tmp_path, capsys):
    words = ["predict", f"--model_dir={tuned.model_dir}", f"--input={tuned.held_out}", f"--output={tmp_path / 'out.tsv'}"]
    for flag, named in (
        ("--probabilities", "generates texts"),
        ("--label=summary", "--label does not go"),
        ("--beams=0", "beams"),
    ):
        assert cli.main([*words, flag]) == 2
        assert named in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("kind", "lm_weight"), [("GPT-2", 0.01), ("T5", None)])
def test_labels_are_predicted_as_by_the_export(untrained, caches_in_process, tmp_path, kind, lm_weight, capsys):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    train = write(tmp_path / "train.tsv", pairs())
    words = ["finetune", f"--init_from={untrained[kind]}", f"--train={train}", "--text=article", "--label=summary"]
    words += [] if lm_weight is None else [f"--lm_weight={lm_weight}"]
    words += ["--epochs=60", "--learning_rate=1e-2", "--batch_size=24", "--length=32", "--gin.Run.eval_every=0"]
    words += ["--gin.Run.keep_best=None", "--gin.CHECKPOINT_EVERY=60", f"--model_dir={tmp_path / 'model'}"]
    assert cli.main(words) == 0
    texts = [text for text, _ in pairs()[:6]]
    model = bertfam.load(tmp_path / "model")
    assert model.predict(texts) == [label for _, label in pairs()[:6]]
    assert read_run(tmp_path / "model").objective.coefficients == {"label": 1} | ({"lm": lm_weight} if lm_weight else {})
    if lm_weight is not None:  # a run that another default began keeps its weight
        assert cli.main([word for word in words if not word.startswith("--lm_weight")]) == 0
        assert "finished already: " in capsys.readouterr().out
    with pytest.raises(UserError, match="Config is no encoder"):
        model.apply(np.zeros((1, 4), np.int32))
    assert cli.main(["export", f"--model_dir={tmp_path / 'model'}", f"--output={tmp_path / 'out'}"]) == 0
    pipeline = transformers.pipeline("text-classification", str(tmp_path / "out"), device="cpu", top_k=None)
    for theirs, shares in zip(pipeline(texts), model.probabilities(texts), strict=True):
        assert {found["label"]: found["score"] for found in theirs} == pytest.approx(shares, abs=1e-5)
