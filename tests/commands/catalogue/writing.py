"""Mistakes with models that write text, and with the cleaning of text; see `entries`."""

from catalogue import Entry

_PAGES = {"pages.txt": "A page of one line.\n"}
_T5 = "pretrain --gin_file=runs/quickstart_t5.gin {text} --model_dir=model"
_GPT2 = "pretrain --gin_file=runs/quickstart_gpt2.gin {text} --model_dir=model"

WRITING = {
    "an encoder that is to write": Entry(
        "generate --model_dir={trained}/model 'The class'",
        ("{trained}/model",),
    ),
    "no prompt": Entry(
        "generate --model_dir={trained}/model",
        ("--prompts=FILE",),
    ),
    "a file of prompts that is not there": Entry(
        "generate --model_dir={trained}/model --prompts=prompts.txt",
        ("--prompts=prompts.txt",),
    ),
    "an empty file of prompts": Entry(
        "generate --model_dir={trained}/model --prompts=prompts.txt",
        ("--prompts=prompts.txt",),
        {"prompts.txt": ""},
    ),
    "a flag of another strategy": Entry(
        "generate --model_dir={trained}/model 'The class' --beams=3",
        ("--beams", "--strategy=beam"),
    ),
    "a temperature of 0": Entry(
        "generate --model_dir={trained}/model 'The class' --strategy=sample --temperature=0",
        ("temperature", "0.0"),
    ),
    "no new tokens": Entry(
        "generate --model_dir={trained}/model 'The class' --max_new_tokens=0",
        ("max_new_tokens", "0"),
    ),
    "spans without sentinels": Entry(
        _T5,
        ("{trained}/vocab", "SpanCorruption", "--layout=t5", "--sentinels=100"),
    ),
    "spans for a decoder": Entry(
        f"{_GPT2} --gin.TextData.corruption=@SpanCorruption()",
        (
            "SpanCorruption",
            "encoder_input_tokens",
            "CausalLm",
            "TextData.corruption",
            "@NextTokens",
            "TextData.rows",
            "{gin_configs}/runs/defaults.gin:10",
        ),
    ),
    "rows longer than a decoder's positions": Entry(
        f"{_GPT2} --gin.Gpt2Config.max_length=8",
        ("Gpt2Config.max_length", "8", "{gin_configs}/runs/defaults.gin:10"),
    ),
    "another start than the model's": Entry(
        f"{_T5} '--gin.SpanCorruption.start=\"eos\"'",
        ("pad", "SpanCorruption.start", "{gin_configs}/runs/defaults.gin:10"),
    ),
    "too much smoothing": Entry(
        f"{_GPT2} --gin.CausalLm.label_smoothing=1.0",
        ("1.0", "--gin.CausalLm.label_smoothing"),
    ),
    "minimal pairs that are not there": Entry(
        "evaluate --model_dir={trained}/model --blimp=BLiMP.zip",
        ("BLiMP.zip", "BLiMP's"),
    ),
    "a minimal pair without its other half": Entry(
        "evaluate --model_dir={trained}/model --blimp=pairs.jsonl",
        ("pairs.jsonl:1", "sentence_bad", "sentence_good"),
        {"pairs.jsonl": '{"sentence_good": "A cat sleeps."}\n'},
    ),
    "a task for an encoder": Entry(
        "evaluate --model_dir={trained}/model --task=translations",
        ("{trained}/model", "--task"),
    ),
    "a name that does not say how it is compressed": Entry(
        "clean --input=pages.txt --output=cleaned.txt",
        ("--output=cleaned.txt", ".jsonl.gz", ".jsonl.zst"),
        _PAGES,
    ),
    "a misspelt rule": Entry(
        "clean --input=pages.txt --output=cleaned.jsonl --rules=end_marks",
        ("end_marks",),
        _PAGES,
    ),
    "rules to apply and to leave out": Entry(
        "clean --input=pages.txt --output=cleaned.jsonl --rules=end_mark --no_rules=policy",
        ("--rules", "--no_rules"),
        _PAGES,
    ),
    "bad words that are not there": Entry(
        "clean --input=pages.txt --output=cleaned.jsonl --bad_words=words.txt",
        ("words.txt",),
        _PAGES,
    ),
    "a report over the text": Entry(
        "clean --input=pages.txt --output=cleaned.jsonl --report=pages.txt",
        ("--report=pages.txt",),
        _PAGES,
    ),
}
