"""A BERT so small that it compiles soon, from the run files that users take."""

from bertfam.config.build import load

FILES = ("runs/bert_base.gin", "models/bert_tiny.gin")
LINES = (
    *("Run.stages = (@Stage(),)", "Stage.length = 32", "BATCH_SIZE = 64", "BertConfig.num_layers = 1"),
    *("BertConfig.hidden_size = 32", "BertConfig.feed_forward_size = 64", "BertConfig.max_length = 32"),
    *("BertConfig.dropout_rate = 0.0", "BertConfig.attention_dropout_rate = 0.0"),
)


def run(lines=(), files=()):
    """The sized run, with more lines or files of gin after its own."""
    return load([*FILES, *files], [*LINES, *lines]).build("Run").sized(4096)
