"""Mistakes with models that write text, and with the cleaning of text; see `entries`."""

from catalogue import Entry

_PAGES = {"pages.txt": "A page of one line.\n"}
_T5 = "pretrain --gin_file=runs/quickstart_t5.gin {text} --model_dir=model"
_GPT2 = "pretrain --gin_file=runs/quickstart_gpt2.gin {text} --model_dir=model"

WRITING = {
    "an encoder that is to write": Entry(
        "generate --model_dir={trained}/model 'The class'",
        "{trained}/model holds an encoder, which writes no text; a masked language model is for bertfam fill",
    ),
    "no prompt": Entry(
        "generate --model_dir={trained}/model",
        "give prompts as words of the command line, or a file of them by --prompts=FILE, one of the two",
    ),
    "a file of prompts that is not there": Entry(
        "generate --model_dir={trained}/model --prompts=prompts.txt",
        "--prompts=prompts.txt cannot be read: No such file or directory",
    ),
    "an empty file of prompts": Entry(
        "generate --model_dir={trained}/model --prompts=prompts.txt",
        "--prompts=prompts.txt is empty; write one prompt a line",
        {"prompts.txt": ""},
    ),
    "a flag of another strategy": Entry(
        "generate --model_dir={trained}/model 'The class' --beams=3",
        "--beams is of --strategy=beam, and the strategy is greedy; give the one or the other",
    ),
    "a temperature of 0": Entry(
        "generate --model_dir={trained}/model 'The class' --strategy=sample --temperature=0",
        "temperature 0.0 must be above 0 and finite; for the likeliest token take the strategy greedy",
    ),
    "no new tokens": Entry(
        "generate --model_dir={trained}/model 'The class' --max_new_tokens=0",
        "max_new_tokens 0 must be at least 1",
    ),
    "spans without sentinels": Entry(
        _T5,
        "{trained}/vocab: the vocabulary has no sentinel tokens, which SpanCorruption needs: choose another "
        "vocabulary (bertfam vocab --layout=t5 --sentinels=100)",
    ),
    "spans for a decoder": Entry(
        f"{_GPT2} --gin.TextData.corruption=@SpanCorruption()",
        "Run: stages[0]: rows of SpanCorruption have encoder_input_tokens, which CausalLm does not read: set "
        "TextData.corruption to @NextTokens() (and TextData.rows to @Chunks()) (Run.stages from "
        "{gin_configs}/runs/defaults.gin:10)",
    ),
    "rows longer than a decoder's positions": Entry(
        f"{_GPT2} --gin.Gpt2Config.max_length=8",
        "Run: stages[0]: rows have 64 tokens of the decoder and Gpt2Config.max_length is 8; shorten the rows "
        "(Stage.length), or enlarge the model's table of positions (Run.stages from "
        "{gin_configs}/runs/defaults.gin:10)",
    ),
    "another start than the model's": Entry(
        f"{_T5} '--gin.SpanCorruption.start=\"eos\"'",
        "Run: stages[0]: T5Config begins what it writes with pad and rows of SpanCorruption with eos: set "
        'SpanCorruption.start = "pad" (Run.stages from {gin_configs}/runs/defaults.gin:10)',
    ),
    "too much smoothing": Entry(
        f"{_GPT2} --gin.CausalLm.label_smoothing=1.0",
        "CausalLm: label_smoothing 1.0 must be at least 0 and below 1 (CausalLm.label_smoothing from "
        "--gin.CausalLm.label_smoothing=1.0)",
    ),
    "minimal pairs that are not there": Entry(
        "evaluate --model_dir={trained}/model --blimp=BLiMP.zip",
        "there is no BLiMP.zip: give BLiMP's zip file, or a folder of its files",
    ),
    "a minimal pair without its other half": Entry(
        "evaluate --model_dir={trained}/model --blimp=pairs.jsonl",
        'pairs.jsonl:1 has no text as "sentence_bad": each line must have sentence_good and sentence_bad',
        {"pairs.jsonl": '{"sentence_good": "A cat sleeps."}\n'},
    ),
    "a task for an encoder": Entry(
        "evaluate --model_dir={trained}/model --task=translations",
        "{trained}/model holds an encoder, which writes no text: --task is for models that do",
    ),
    "a name that does not say how it is compressed": Entry(
        "clean --input=pages.txt --output=cleaned.txt",
        "--output=cleaned.txt must end in .jsonl, .jsonl.gz, .jsonl.zst, which says whether it is compressed",
        _PAGES,
    ),
    "a misspelt rule": Entry(
        "clean --input=pages.txt --output=cleaned.jsonl --rules=end_marks",
        "'end_marks' is no rule of cleaning; did you mean end_mark?",
        _PAGES,
    ),
    "rules to apply and to leave out": Entry(
        "clean --input=pages.txt --output=cleaned.jsonl --rules=end_mark --no_rules=policy",
        "--rules names those that are applied and --no_rules those that are not: give one of them",
        _PAGES,
    ),
    "bad words that are not there": Entry(
        "clean --input=pages.txt --output=cleaned.jsonl --bad_words=words.txt",
        "words.txt cannot be read: No such file or directory",
        _PAGES,
    ),
    "a report over the text": Entry(
        "clean --input=pages.txt --output=cleaned.jsonl --report=pages.txt",
        "--report=pages.txt exists already: name another file, or remove it first",
        _PAGES,
    ),
}
