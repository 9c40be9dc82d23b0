"""Comparison of fine-tuned models with torch and transformers: the peer learns a few texts, and the table compares both sides."""

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("sklearn")

from benchmarks import finetuning  # noqa: E402
from bertfam.arguments import Parser  # noqa: E402
from bertfam.commands import evaluate  # noqa: E402

CONTROL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SENTENCES = ["they drank the pub dry .", "they drank the pub .", "the ball rolled out .", "the ball the rolled out ."]


@pytest.fixture
def start(tmp_path):
    """Return the folder of a tiny BERT in transformers' format."""
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    (tmp_path / "vocab.txt").write_text("\n".join([*CONTROL_TOKENS, *words]))
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=len(words) + len(CONTROL_TOKENS), max_position_embeddings=32, **sizes)
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(tmp_path / "start")
    transformers.BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "start")
    return tmp_path / "start"


def test_the_peer_learns_and_both_sides_are_compared(start, tmp_path, modules_in_process, monkeypatch):
    data = tmp_path / "GLUE/CoLA"
    data.mkdir(parents=True)
    lines = [f"gj04\t{number % 2 ^ 1}\t\t{sentence}" for number, sentence in enumerate(SENTENCES)]
    (data / "train.tsv").write_text("\n".join(lines * 4) + "\n")
    (data / "dev.tsv").write_text("\n".join(lines) + "\n")
    words = [f"--init_from={start}", f"--data_dir={tmp_path / 'GLUE'}", "--tasks=cola", "--seeds=1,2", "--epochs=25"]
    words += ["--batch_size=16", "--length=16", "--learning_rate=1e-2", "--peer_device=cpu"]
    output = tmp_path / "results"
    output.mkdir()
    jobs, run_all = {}, finetuning.run_all

    def run_peers(given, folder, gpus):
        jobs.update(given)
        run_all({name: own for name, own in given.items() if name != "ours"}, folder, gpus)

    monkeypatch.setattr(finetuning, "run_all", run_peers)
    monkeypatch.setattr("sys.argv", ["finetuning", "train", f"--output={output}", *words])
    assert finetuning.main() == 0
    assert json.loads((output / "start/config.json").read_text())["attention_probs_dropout_prob"] == 0
    # Our side is a command of the suites, whose tests train: here the flags are parsed.
    ((module, command, *flags),) = jobs["ours"]
    parser = Parser()
    evaluate.add_arguments(parser)
    args = parser.parse_args(flags)
    assert (module, command, args.suite, args.epochs, args.learning_rate) == ("bertfam", "evaluate", "glue", 25, 1e-2)
    scores = {"mcc": {"values": {"1": 0.5, "2": 0.9}}}
    report = {"seeds": [1, 2], "tasks": {"glue/cola": {"metrics": ["mcc"], "scores": {"start": scores}}}}
    (output / "ours").mkdir()
    (output / "ours/report.json").write_text(json.dumps(report))
    # Held-out sentences are those of the training.
    assert [*finetuning.comparisons(output)] == [("cola", "mcc", {"ours": [0.5, 0.9], "torch": [1.0, 1.0]})]
    rows = modules_in_process("benchmarks.finetuning", "table", f"--output={output}").splitlines()[2:]
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    assert cells == [
        ["cola, mcc", "ours", "2", "0.700", "0.500 - 0.900", "no"],
        ["cola, mcc", "torch", "2", "1.000", "1.000 - 1.000", "no"],
    ]
