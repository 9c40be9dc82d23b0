"""Small BERT from the run files that users use, fast to compile."""

from bertfam.config.build import load

FILES = ("runs/bert_base.gin", "models/bert_tiny.gin")
LINES = (
    *("Run.stages = (@Stage(),)", "Stage.length = 32", "BATCH_SIZE = 64", "BertConfig.num_layers = 1"),
    *("BertConfig.hidden_size = 32", "BertConfig.feed_forward_size = 64", "BertConfig.max_length = 32"),
    *("BertConfig.dropout_rate = 0.0", "BertConfig.attention_dropout_rate = 0.0"),
)


def run(lines=(), files=()):
    """Return the sized run, with `lines` and `files` of gin added to its own."""
    return load([*FILES, *files], [*LINES, *lines]).build("Run").sized(4096)
