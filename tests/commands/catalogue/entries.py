"""Mistakes that people make, and the names that the line of each must have: name -> `catalogue.Entry`."""

from catalogue import Changed, Copy, Entry
from planning import PLANNING
from writing import WRITING

# gin files, gin flags, and settings that clash.
CONFIGURATION = {
    "no configuration": Entry(
        "pretrain {text} --model_dir=model",
        ("--gin_file=FILE", "runs/quickstart.gin"),
    ),
    "a gin file that is not there": Entry(
        "pretrain --gin_file=runs/quickstrat.gin {text} --model_dir=model",
        ("--gin_file=runs/quickstrat.gin",),
    ),
    "a gin file that is a folder": Entry(
        "pretrain --gin_file=. {text} --model_dir=model",
        ("--gin_file=",),
    ),
    "a gin file that is binary": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("--gin_file=a.gin", "a.gin:2"),
        {"a.gin": b"SEED = 1\n\xff\xfe\x00"},
    ),
    "an empty gin file": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("a.gin",),
        {"a.gin": ""},
    ),
    "a misspelt configurable": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("a.gin:2", "BertConfg"),
        {"a.gin": 'include "{trained}/run.gin"\nBertConfg.num_layers = 3\n'},
    ),
    "a misspelt parameter": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("a.gin:2", "BertConfig", "num_layer"),
        {"a.gin": 'include "{trained}/run.gin"\nBertConfig.num_layer = 3\n'},
    ),
    "a misspelt parameter in a flag": Entry(
        "pretrain {run} --gin.BertConfig.num_layer=3",
        ("--gin.BertConfig.num_layer=3",),
    ),
    "an abbreviated number": Entry(
        "pretrain {run} --gin.BATCH_SIZE=8k",
        ("--gin.BATCH_SIZE=8k", "8_192", "8_000"),
    ),
    "another library's name of the rate": Entry(
        "pretrain {run} --gin.learning_rate=1e-3",
        ("--gin.learning_rate=1e-3", "peak"),
    ),
    "the name of a tracker as text": Entry(
        "pretrain {run} '--gin.Run.trackers=(\"wandb\",)'",
        ("Run.trackers", "(@Wandb(),)"),
    ),
    "a misspelt macro": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("a.gin:2", "TRAIN_STEP"),
        {"a.gin": 'include "{trained}/run.gin"\nTRAIN_STEP = 3\n'},
    ),
    "a macro that is not defined": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("a.gin:2", "%LAYERS"),
        {"a.gin": 'include "{trained}/run.gin"\nBertConfig.num_layers = %LAYERS\n'},
    ),
    "a macro within itself": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("a.gin:2",),
        {"a.gin": 'include "{trained}/run.gin"\nA = %B\nB = %A\nBertConfig.num_layers = %A\n'},
    ),
    "a misspelt scope": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("a.gin:2", "lng/Stage.steps"),
        {"a.gin": 'include "{trained}/run.gin"\nlng/Stage.steps = 3\n'},
    ),
    "a value bound twice": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("a.gin:3", "Execution.remat"),
        {"a.gin": 'include "{trained}/run.gin"\nExecution.remat = "full"\nExecution.remat = "none"\n'},
    ),
    "a string for a number": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("a.gin:2", "BertConfig.num_layers", "3"),
        {"a.gin": "include \"{trained}/run.gin\"\nBertConfig.num_layers = '3'\n"},
    ),
    "a number with a point for a whole one": Entry(
        "pretrain {run} --gin.BertConfig.num_layers=2.0",
        ("--gin.BertConfig.num_layers=2.0",),
    ),
    "a truth for a number": Entry(
        "pretrain {run} --gin.Run.seed=True",
        ("--gin.Run.seed=True",),
    ),
    "a word without quotes": Entry(
        "pretrain {run} --gin.Execution.dtype=bfloat16",
        ("--gin.Execution.dtype=bfloat16",),
    ),
    "an unknown choice": Entry(
        "pretrain {run} --gin.Execution.dtype='\"float16\"'",
        ('--gin.Execution.dtype="float16', "float32", "bfloat16"),
    ),
    "a number without end": Entry(
        "pretrain {run} --gin.LinearDecay.peak=1e999",
        ("--gin.LinearDecay.peak=1e999", "3.4e38"),
    ),
    "a number of too many digits": Entry(
        "pretrain {run} --gin.Run.log_every=10000000000000000000",
        ("--gin.Run.log_every=10000000000000000000", "3.4e38"),
    ),
    "a part without brackets": Entry(
        "pretrain {run} --gin.Run.optimizer=@Lamb",
        ("--gin.Run.optimizer=@Lamb",),
    ),
    "a part of another kind": Entry(
        "pretrain {run} --gin.Run.objective=@BertConfig()",
        ("--gin.Run.objective=@BertConfig",),
    ),
    "a value that is never bound": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("a.gin:3", "@Stage"),
        {"a.gin": 'include "objectives/mlm_nsp.gin"\nRun.data = @TextData()\nRun.stages = (@Stage(),)\nMODEL = @BertConfig()\n'},
    ),
    "a value left to the user": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("a.gin:2", "Run.keep_every"),
        {"a.gin": 'include "{trained}/run.gin"\nRun.keep_every = %gin.REQUIRED\n'},
    ),
    "a flag that changes nothing": Entry(
        "pretrain {run} --gin.Lamb.b1=0.8",
        ("--gin.Lamb.b1=0.8",),
    ),
    "a bracket that is never closed": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("a.gin:2",),
        {"a.gin": 'include "{trained}/run.gin"\nRun.stages = (@short/Stage(),\n'},
    ),
    "brackets within brackets": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("a.gin",),
        {"a.gin": 'include "{trained}/run.gin"\nRun.log_every = ' + "(" * 1000},
    ),
    "an include that is not there": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("a.gin:2", "b.gin"),
        {"a.gin": 'SEED = 1\ninclude "b.gin"\n'},
    ),
    "an include that is binary": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("a.gin:1", "b.gin:1"),
        {"a.gin": 'include "b.gin"\n', "b.gin": b"\x80\x81"},
    ),
    "an include that includes its includer": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("b.gin:1", "a.gin"),
        {"a.gin": 'include "b.gin"\n', "b.gin": 'include "a.gin"\n'},
    ),
    "an import that is not there": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("a.gin:2", "qqqqqqqq"),
        {"a.gin": 'include "{trained}/run.gin"\nimport qqqqqqqq\n'},
    ),
    "an import that does not parse": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("a.gin:2", "broken.py:1", "SyntaxError"),
        {"a.gin": 'include "{trained}/run.gin"\nimport broken\n', "broken.py": "x = (\n"},
    ),
    "an import that ends the process": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        ("a.gin:2", "ends.py:2", "SystemExit", "3"),
        {"a.gin": 'include "{trained}/run.gin"\nimport ends\n', "ends.py": "import sys\nsys.exit(3)\n"},
    ),
    "a module that is a file": Entry(
        "pretrain {run} --module_import=books.py",
        ("--module_import=books.py",),
    ),
    "no stages": Entry(
        "pretrain {run} '--gin.Run.stages=()'",
        ("--gin.Run.stages",),
    ),
    "a stage without steps": Entry(
        "pretrain {run} --gin.TRAIN_STEPS=0 --gin.short/Stage.steps=0",
        ("0", "--gin.short/Stage.steps"),
    ),
    "more steps than can be counted": Entry(
        "pretrain {run} --gin.long/Stage.steps=2147483647",
        ("steps", "{trained}/run.gin:10"),
    ),
    "rows longer than the model": Entry(
        "pretrain {run} --gin.long/Stage.length=32",
        ("Stage.length", "32", "BertConfig.max_length", "{trained}/run.gin:10"),
    ),
    "rows too short for a pair": Entry(
        "pretrain {run} --gin.short/Stage.length=4",
        ("length", "4", "short", "{trained}/run.gin:10"),
    ),
    "heads that do not divide the model": Entry(
        "pretrain {run} --gin.BertConfig.num_heads=3",
        ("BertConfig.hidden_size", "3", "{trained}/run.gin:17", "--gin.BertConfig.num_heads"),
    ),
    "a layer of nothing": Entry(
        "pretrain {run} --gin.BertConfig.feed_forward_size=0",
        ("0", "--gin.BertConfig.feed_forward_size"),
    ),
    "another vocabulary size": Entry(
        "pretrain {run} --gin.BertConfig.vocab_size=1000",
        ("BertConfig.vocab_size", "1000"),
    ),
    "rows without what the objective reads": Entry(
        "pretrain {run} --gin.TextData.rows=@Chunks()",
        (
            "MlmNsp",
            "next_sentence_labels",
            "Chunks",
            "TextData.rows",
            "@SentencePairs",
            "Run.objective",
            "{gin_configs}/objectives/mlm_nsp.gin:3",
            "{trained}/run.gin:10",
        ),
    ),
    "pairs without the labels that the objective reads": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        (
            "MlmSop",
            "sentence_order_labels",
            "TextData.rows",
            "@SentencePairs",
            "SentencePairs.relation",
            "Run.objective",
            "a.gin:2",
            "{trained}/run.gin:10",
        ),
        {"a.gin": 'include "{trained}/run.gin"\nRun.objective = @MlmSop()\nMlmSop.model = @BertConfig()\n'},
    ),
    "a share of random pairs where there is another relation": Entry(
        "pretrain {run} '--gin.SentencePairs.relation=\"structure\"' --gin.SentencePairs.random_next_rate=0.2",
        ("0.2", "structure", "--gin.SentencePairs.relation", "--gin.SentencePairs.random_next_rate"),
    ),
    "boundaries of single tokens": Entry(
        "pretrain {run} --gin.BertMasking.boundaries=True",
        ("True", "SingleTokens", "@WordSpans", "--gin.BertMasking.boundaries"),
    ),
    "windows of one token": Entry(
        "pretrain {run} --gin.BertMasking.shuffling=@ShuffledWindows() --gin.ShuffledWindows.size=1",
        ("1", "--gin.ShuffledWindows.size"),
    ),
    "units that all weigh nothing": Entry(
        "pretrain {run} --gin.BertMasking.choice=@Units() --gin.Units.basic=0.0 --gin.Units.phrase=0.0 --gin.Units.entity=0.0",
        ("0.0", "--gin.Units.basic", "--gin.Units.phrase", "--gin.Units.entity"),
    ),
    "more predictions than tokens": Entry(
        "pretrain {run} --gin.BertMasking.max_predictions=17",
        ("17", "{trained}/run.gin:10"),
    ),
    "shares of more than all": Entry(
        "pretrain {run} --gin.BertMasking.random_share=0.3",
        ("mask_share", "0.8", "0.3", "--gin.BertMasking.random_share"),
    ),
    "no noise": Entry(
        "pretrain {run} --gin.BertMasking.rate=0.0",
        ("0.0", "--gin.BertMasking.rate"),
    ),
    "losses of no weight": Entry(
        "pretrain {run} --gin.MlmNsp.mlm=0.0 --gin.MlmNsp.nsp=0.0",
        ("0", "--gin.MlmNsp.mlm", "--gin.MlmNsp.nsp"),
    ),
    "streams of packed rows": Entry(
        "pretrain {run} '--gin.TextData.order=\"streams\"' --gin.TextData.rows=@Packed()",
        ("streams", "--gin.TextData.rows", "--gin.TextData.order"),
    ),
    "an empty name": Entry(
        "pretrain {run} '--gin.TextData.cache_dir=\"\"'",
        ("MODEL_DIR/cache", "--gin.TextData.cache_dir"),
    ),
    "a best metric that is not measured": Entry(
        "pretrain {run} '--gin.Run.keep_best=\"accuracy\"'",
        ("Run.keep_best", "accuracy"),
    ),
    "a best metric without evaluation": Entry(
        "pretrain {run} '--gin.Run.keep_best=\"mlm_loss\"' --gin.EVAL_EVERY=0",
        ("mlm_loss", "eval_every", "0", "{gin_configs}/runs/defaults.gin:14", "--gin.EVAL_EVERY", "--gin.Run.keep_best"),
    ),
}

# Optimizers, schedules, ramps.
OPTIMIZERS = {
    "a negative rate": Entry(
        "pretrain {run} --gin.LinearDecay.peak=-1e-4",
        ("-0.0001", "--gin.LinearDecay.peak"),
    ),
    "a negative warm-up": Entry(
        "pretrain {run} --gin.LinearDecay.warmup_steps=-1",
        ("-1", "--gin.LinearDecay.warmup_steps"),
    ),
    "a floor above the peak": Entry(
        "pretrain {run} --gin.LinearDecay.floor=2.0",
        ("2.0", "{trained}/run.gin:21", "--gin.LinearDecay.floor"),
    ),
    "a power of nothing": Entry(
        "pretrain {run} --gin.AdamW.schedule=@PolynomialDecay() --gin.PolynomialDecay.power=0.0",
        ("0.0", "--gin.PolynomialDecay.power"),
    ),
    "a moment that never forgets": Entry(
        "pretrain {run} --gin.AdamW.b2=1.0",
        ("1.0", "--gin.AdamW.b2"),
    ),
    "a moment in too few bits": Entry(
        "pretrain {run} '--gin.AdamW.nu_dtype=\"bfloat16\"'",
        ("bfloat16", "0.999", "--gin.AdamW.nu_dtype"),
    ),
    "gradients clipped to nothing": Entry(
        "pretrain {run} --gin.AdamW.clip_norm=0.0",
        ("0.0", "--gin.AdamW.clip_norm"),
    ),
    "a decay of layers above 1": Entry(
        "pretrain {run} --gin.AdamW.layer_decay=1.5",
        ("1.5", "--gin.AdamW.layer_decay"),
    ),
    "iterations without end": Entry(
        "pretrain {run} --gin.Run.optimizer=@Muon() --gin.Muon.iterations=1000000",
        ("1000000", "--gin.Muon.iterations"),
    ),
    "an average of the future": Entry(
        "pretrain {run} --gin.Run.average_decay=1.0",
        ("1.0", "--gin.Run.average_decay"),
    ),
    "a ramp that falls": Entry(
        "pretrain {run} '--gin.Run.stages=(@Ramp(),)' --gin.Ramp.steps=8 --gin.Ramp.length=16 "
        "--gin.Ramp.batch_size=8 --gin.Ramp.first_batch_size=16",
        ("16", "8", "--gin.Ramp.batch_size", "--gin.Ramp.first_batch_size"),
    ),
}

# The mesh, and what it divides.
MESH = {
    "a mesh of more devices": Entry(
        "pretrain {run} --gin.MeshShape.data=3",
        ("data=3",),
    ),
    "a mesh that leaves none for data": Entry(
        "pretrain {run} --gin.MeshShape.tensor=2",
        ("tensor=2",),
    ),
    "an axis of nothing": Entry(
        "pretrain {run} --gin.MeshShape.fsdp=0",
        ("0", "--gin.MeshShape.fsdp"),
    ),
    "microbatches that do not divide the batch": Entry(
        "pretrain {run} --gin.Run.microbatches=3",
        ("3", "microbatches"),
    ),
}

# Text, vocabularies, token caches.
DATA = {
    "units of text without marks": Entry(
        "pretrain {run} --gin.BertMasking.choice=@Units()",
        ("Units", "--marks=given", "--marks=names", "BertMasking.choice", "@WholeWords"),
    ),
    "units of a cache without marks": Entry(
        "pretrain --gin_file={trained}/run.gin --cache_dir={trained}/model/cache --model_dir=out "
        "--gin.BertMasking.choice=@Units()",
        ("{trained}/model/cache", "Units", "--marks=given", "--marks=names", "BertMasking.choice", "@WholeWords"),
    ),
    "marks of no text": Entry(
        "cache --output=cache --vocab={trained}/vocab --marks=names",
        ("--marks=names", "--input=GLOB", "--task=NAME"),
    ),
    "a file that is not there": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=none.txt",
        ("none.txt", "{here}"),
    ),
    "a glob of nothing": Entry(
        "cache --output=cache --vocab={trained}/vocab --input='*.text'",
        ("*.text", "{here}"),
    ),
    "a folder": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=texts",
        ("texts/*.txt",),
        {"texts/a.txt": "One.\n"},
    ),
    "a device": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=/dev/null",
        ("/dev/null",),
    ),
    "an empty file": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.txt",
        ("a.txt",),
        {"a.txt": ""},
    ),
    "blank lines": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.txt --input=b.txt",
        ("a.txt", "b.txt"),
        {"a.txt": "\n \n", "b.txt": ""},
    ),
    "one document": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.txt",
        ("document",),
        {"a.txt": "The only document.\nOf two sentences.\n"},
    ),
    "a binary file": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.txt",
        ("a.txt:4", "--encoding"),
        {"a.txt": b"One.\n\nTwo.\n\x89PNG\x00\n"},
    ),
    "a NUL character": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.txt",
        ("a.txt:3", "--encoding"),
        {"a.txt": b"One.\n\nTwo.\x00\n"},
    ),
    "another encoding": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.txt",
        ("a.txt:4", "--encoding"),
        {"a.txt": b"One.\n\nTwo.\nCaf\xe9.\n"},
    ),
    "the wrong encoding": Entry(
        "cache --output=cache --vocab={trained}/vocab --input={trained}/text/train.txt --encoding=utf-16",
        ("{trained}/text/train.txt", "--encoding"),
    ),
    "an encoding that does not exist": Entry(
        "cache --output=cache --vocab={trained}/vocab --input={trained}/text/train.txt --encoding=utf-99",
        ("TextFiles", "encoding", "utf-99", "shift_jis"),
    ),
    "a language without rules": Entry(
        "cache --output=cache --vocab={trained}/vocab --input={trained}/text/train.txt --language=xx --input_format=lines",
        ("TextFiles", "language", "xx", "und"),
    ),
    "a gzip file that is cut off": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.gz",
        ("a.gz", "gzip"),
        {"a.gz": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x0b\xc9H"},
    ),
    "a zstd file that is damaged": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.zst",
        ("a.zst",),
        {"a.zst": b"(\xb5/\xfdnonsense"},
    ),
    "a JSON line that is cut off": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.jsonl --input_format=jsonl",
        ("a.jsonl:2",),
        {"a.jsonl": '{"text": "One."}\n{"text": "Tw'},
    ),
    "a JSON line that is no object": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.jsonl --input_format=jsonl",
        ("a.jsonl:3",),
        {"a.jsonl": '{"text": "One."}\n\n["Two."]\n'},
    ),
    "a JSON line without the field": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.jsonl --input_format=jsonl",
        ("a.jsonl:2", "body", "--text_field"),
        {"a.jsonl": '{"text": "One."}\n{"body": "Two.", "id": 2}\n'},
    ),
    "a JSON line with a number": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.jsonl --input_format=jsonl",
        ("a.jsonl:1", "--text_field"),
        {"a.jsonl": '{"text": 3}\n'},
    ),
    "text for Parquet": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.txt --input_format=parquet",
        ("a.txt",),
        {"a.txt": "One.\n"},
    ),
    "a field of a format without fields": Entry(
        "cache --output=cache --vocab={trained}/vocab --input={trained}/text/train.txt --text_field=body",
        ("TextFiles", "text_field", "body"),
    ),
    "the same text on both sides": Entry(
        "cache --output=cache --vocab={trained}/vocab --input={trained}/text/train.txt "
        "--validation_input={trained}/text/train.txt",
        ("{trained}/text/train.txt",),
    ),
    "held-out text that is empty": Entry(
        "cache --output=cache --vocab={trained}/vocab --input={trained}/text/train.txt --validation_input=a.txt",
        ("a.txt",),
        {"a.txt": "\n"},
    ),
    "no vocabulary": Entry(
        "cache --output=cache --input={trained}/text/train.txt ",
        ("--output=DIR", "--vocab=DIR"),
    ),
    "a vocabulary that is not there": Entry(
        "cache --output=cache --vocab=nowhere --input={trained}/text/train.txt ",
        ("nowhere", "tokenizer.json"),
    ),
    "a vocabulary of nothing": Entry(
        "cache --output=cache --vocab=texts --input={trained}/text/train.txt ",
        ("texts", "tokenizer.json", "vocab"),
        {"texts/a.txt": "One.\n"},
    ),
    "a vocabulary that is damaged": Entry(
        "cache --output=cache --vocab=v --input={trained}/text/train.txt ",
        ("v/tokenizer.json",),
        {"v/tokenizer.json": "{"},
    ),
    "no text": Entry(
        "cache --output=cache --vocab={trained}/vocab",
        ("--input=GLOB", "--task=NAME", "--cache_dir=DIR"),
    ),
    "text and a task": Entry(
        "cache --output=cache --vocab={trained}/vocab --input={trained}/text/train.txt --task=python_docs",
        ("--input", "--task"),
    ),
    "a flag of text without text": Entry(
        "cache --output=cache --vocab={trained}/vocab --encoding=latin-1",
        ("--encoding", "--input=GLOB"),
    ),
    "a cache that is not there": Entry(
        "pretrain --gin_file={trained}/run.gin --model_dir=out --cache_dir=texts",
        ("texts", "cache.json"),
        {"texts/a.txt": "One.\n"},
    ),
    "a cache that is damaged": Entry(
        "pretrain --gin_file={trained}/run.gin --model_dir=out --cache_dir=c",
        ("c/cache.json", "format"),
        {"c/cache.json": "{}"},
    ),
    "a cache of another format": Entry(
        "pretrain --gin_file={trained}/run.gin --model_dir=out --cache_dir=c",
        ("cache", "format", "1"),
        {"c/cache.json": '{"format": 1}'},
    ),
    "a cache with a file of another size": Entry(
        "pretrain --gin_file={trained}/run.gin --model_dir=out --cache_dir=model/cache",
        ("model/cache/text/train/tokens.bin",),
        {"model": Copy("{trained}/model"), "model/cache/text/train/tokens.bin": "x"},
    ),
    "a cache of another vocabulary": Entry(
        "pretrain --gin_file={trained}/run.gin --model_dir=out --cache_dir={trained}/model/cache --vocab={trained}/other-vocab",
        ("{trained}/model/cache",),
    ),
    "a cache of other text": Entry(
        "pretrain --gin_file={trained}/run.gin --model_dir=out --cache_dir={trained}/model/cache --input=a.txt "
        "--validation_input={trained}/text/held-out.txt",
        ("{trained}/model/cache", "corpora.text.train[train.txt].name", "a.txt"),
        {"a.txt": "One.\n\nTwo.\n"},
    ),
}

# Runs, checkpoints, models to start from, Hugging Face folders.
CHECKPOINTS = {
    "going on with BertConfig.hidden_size=32": Entry(
        "pretrain {run} --gin.BertConfig.hidden_size=32",
        ("Run.objective.model.hidden_size", "32"),
        {"model": Copy("{trained}/model")},
    ),
    "going on with LinearDecay.peak=1.0": Entry(
        "pretrain {run} --gin.LinearDecay.peak=1.0",
        ("Run.optimizer.schedule.peak", "0.01", "1.0"),
        {"model": Copy("{trained}/model")},
    ),
    "going on with Run.optimizer=@Lamb()": Entry(
        "pretrain {run} --gin.Run.optimizer=@Lamb()",
        ("Run.optimizer", "AdamW", "Lamb"),
        {"model": Copy("{trained}/model")},
    ),
    "going on with short/Stage.steps=3": Entry(
        "pretrain {run} --gin.short/Stage.steps=3",
        ("Run.stages[0].steps", "3"),
        {"model": Copy("{trained}/model")},
    ),
    "going on with another vocabulary": Entry(
        "pretrain --gin_file={trained}/run.gin --input={trained}/text/train.txt --validation_input={trained}/text/held-out.txt "
        "--vocab={trained}/other-vocab --model_dir=model",
        ("{trained}/other-vocab",),
        {"model": Copy("{trained}/model")},
    ),
    "going on with other text": Entry(
        "pretrain {run} --input=a.txt",
        ("model/cache", "corpora.text.train"),
        {"model": Copy("{trained}/model"), "a.txt": "One.\n\nTwo.\n"},
    ),
    "going on without a fingerprint": Entry(
        "pretrain --model_dir=model",
        ("model/fingerprint.json",),
        {"model": Copy("{trained}/model"), "model/fingerprint.json": None},
    ),
    "going on with a damaged fingerprint": Entry(
        "pretrain --model_dir=model",
        ("model/fingerprint.json",),
        {"model": Copy("{trained}/model"), "model/fingerprint.json": "{"},
    ),
    "going on without the configuration": Entry(
        "pretrain {run} ",
        ("model/config.gin", "model/files.json"),
        {"model": Copy("{trained}/model"), "model/config.gin": None, "model/NOTES": ""},
    ),
    "all checkpoints are damaged": Entry(
        "pretrain --model_dir=model",
        ("{here}/model/checkpoints", "7", "digests.json"),
        {"model": Copy("{trained}/model"), "model/checkpoints": None, "model/checkpoints/7/digests.json": "{"},
    ),
    "an unfinished checkpoint alone": Entry(
        "fill --model_dir=model [MASK]",
        ("{here}/model/checkpoints", "7", "digests.json"),
        {"model": Copy("{trained}/model"), "model/checkpoints": None, "model/checkpoints/7/params": ""},
    ),
    "parts of nothing": Entry(
        "pretrain {run} --init_parts=encoder",
        ("--init_parts", "--init_from"),
    ),
    "a start from nothing": Entry(
        "pretrain {run} --init_from=nowhere",
        ("nowhere", "config.gin", "config.json"),
    ),
    "a start from an unknown part": Entry(
        "pretrain {run} --init_from={trained}/model --init_parts=encodr",
        ("--init_parts=encodr", "{trained}/model"),
    ),
    "a start from another size": Entry(
        "pretrain {run} --init_from={trained}/model --gin.BertConfig.feed_forward_size=64",
        ("Run.objective.model.feed_forward_size", "{trained}/model", "64"),
    ),
    "no run": Entry(
        "evaluate --model_dir=nowhere",
        ("nowhere", "config.gin"),
    ),
    "no checkpoints": Entry(
        "evaluate --model_dir=model",
        ("checkpoints",),
        {"model": Copy("{trained}/model"), "model/checkpoints": None},
    ),
    "no cache": Entry(
        "evaluate --model_dir=model",
        ("model/cache", "--cache_dir"),
        {"model": Copy("{trained}/model"), "model/cache": None},
    ),
    "no such step": Entry(
        "evaluate --model_dir={trained}/model --step=7",
        ("{trained}/model/checkpoints", "step", "7"),
    ),
    "an update that a run does not have": Entry(
        "replay --model_dir={trained}/model --step=25",
        ("--step=25",),
    ),
    "a replay of no run": Entry(
        "replay --model_dir=nowhere --step=5",
        ("nowhere", "config.gin"),
    ),
    "an update before all checkpoints": Entry(
        "replay --model_dir={trained}/model --step=5",
        ("{trained}/model/checkpoints", "--step=5"),
    ),
    "an update before the checkpoint": Entry(
        "replay --model_dir={trained}/model --step=12 --checkpoint=15",
        ("--checkpoint=15", "--step=12"),
    ),
    "a damaged checkpoint to replay from": Entry(
        "replay --model_dir=model --step=12 --checkpoint=7",
        ("{here}/model/checkpoints/7", "digests.json"),
        {"model": Copy("{trained}/model"), "model/checkpoints/7/digests.json": "{"},
    ),
    "a replay of no arrangement": Entry(
        "replay --model_dir={trained}/model --step=12 --times=0",
        ("--times=0", "1"),
    ),
    "a column that labelled texts do not have": Entry(
        "finetune --init_from={trained}/model --train=train.tsv --label=class --model_dir=m",
        ("train.tsv:2", "'class'", "--label"),
        {"train.tsv": "text\tlabel\nhe returns\tgood\nit raises\tbad\n"},
    ),
    "a question without a passage that answers it": Entry(
        "finetune --init_from={trained}/model --retrieval --train=train.jsonl --model_dir=m",
        ("train.jsonl:2", "positive"),
        {"train.jsonl": '{"question": "Why?", "positive": "So."}\n{"question": "Who?", "passage": "He."}\n'},
    ),
    "answers from passages without an index": Entry(
        "finetune --init_from={trained}/model --rag=token --train=train.jsonl --model_dir=m",
        ("--rag=token", "--index=DIR"),
        {"train.jsonl": '{"question": "Why?", "answer": "So."}\n'},
    ),
    "an encoder that is to write answers": Entry(
        "finetune --init_from={trained}/model --rag=token --index=nowhere --train=train.jsonl --model_dir=m",
        ("Rag.model", "BertConfig", "--init_from={trained}/model"),
        {"train.jsonl": '{"question": "Why?", "answer": "So."}\n'},
    ),
    "passages without --rag": Entry(
        "finetune --init_from={trained}/model --passages=3 --train=train.tsv --model_dir=m",
        ("--passages", "--rag=sequence"),
        {"train.tsv": "text\tlabel\nhe returns\tgood\nit raises\tbad\n"},
    ),
    "predictions of a model without labels": Entry(
        "predict --model_dir={trained}/model --input=new.tsv --output=out.tsv",
        ("{trained}/model", "finetune"),
        {"new.tsv": "text\nhe returns\n"},
    ),
    "vectors in a file of no kind": Entry(
        "embed --model_dir={trained}/model --input=new.tsv --output=vectors.txt",
        ("--output=vectors.txt", ".npy", ".parquet"),
        {"new.tsv": "text\nhe returns\n"},
    ),
    "embedded texts longer than the model's rows": Entry(
        "embed --model_dir={trained}/model --input=new.tsv --output=vectors.npy --length=9999",
        ("(--length)", "9999"),
        {"new.tsv": "text\nhe returns\n"},
    ),
    "an index of an empty passage": Entry(
        "index --model_dir={trained}/model --input=passages.tsv --output=index",
        ("passages.tsv:3", "empty", "--text"),
        {"passages.tsv": "id\ttext\n1\the returns\n2\t\n"},
    ),
    "an index with a description of another type": Entry(
        "retrieve --index=index question",
        ("index/index.json", "passages", "must be a whole number"),
        {"index/index.json": '{"version": 1, "passages": "all"}'},
    ),
    "questions without an index": Entry(
        "evaluate --model_dir={trained}/model --questions=dev.json",
        ("--questions", "--index"),
    ),
    "no average": Entry(
        "export --model_dir={trained}/model --output=out --average",
        ("{trained}/model", "Run.average_decay"),
    ),
    "no batches": Entry(
        "evaluate --model_dir={trained}/model --batches=0",
        ("--batches=0",),
    ),
    "a vocabulary in the place of the own": Entry(
        "export --model_dir=model --output=out",
        ("model/vocab", "trained"),
        {"model": Copy("{trained}/model"), "model/vocab": Copy("{trained}/other-vocab")},
    ),
    "a run without its vocabulary": Entry(
        "fill --model_dir=model [MASK]",
        ("model/vocab", "model/cache/vocab"),
        {"model": Copy("{trained}/model"), "model/vocab": None},
    ),
    "a run with a damaged configuration": Entry(
        "fill --model_dir=model [MASK]",
        ("model/config.gin:1", "steps"),
        {"model": Copy("{trained}/model"), "model/config.gin": "Run.steps = 3\n"},
    ),
    "no mask": Entry(
        "fill --model_dir={trained}/model 'No mask.'",
        ("[MASK]", "'No mask.'"),
    ),
    "no candidates": Entry(
        "fill --model_dir={trained}/model --top_k=0 [MASK]",
        ("--top_k=0",),
    ),
    "a step of no copy": Entry(
        "checkpoints --model_dir={trained}/model --step=5",
        ("--step", "--copy_weights"),
    ),
    "a copy of no step": Entry(
        "checkpoints --model_dir={trained}/model --copy_weights=out --step=7",
        ("{trained}/model/checkpoints", "step", "7"),
    ),
    "a copy without its vocabulary": Entry(
        "checkpoints --model_dir=model --copy_weights=out",
        ("vocab",),
        {"model": Copy("{trained}/model"), "model/vocab": None},
    ),
    "a copy as JSON": Entry(
        "checkpoints --model_dir={trained}/model --copy_weights=out --json",
        ("--json", "checkpoints", "--copy_weights"),
    ),
    "heads measured on nothing": Entry(
        "analyze heads --model_dir={trained}/model", ("--input", "--dependencies", "--coreference")
    ),
    "a kind of cloze items that is misspelt": Entry(
        "analyze cloze --model_dir={trained}/model --kinds=sintax", ("--kinds=sintax", "syntax")
    ),
    "a cloze item without a blank": Entry(
        "analyze cloze --model_dir={trained}/model --input=items.jsonl",
        ("items.jsonl:1", "___"),
        {"items.jsonl": '{"text": "it is", "answers": ["a"]}'},
    ),
    "probes of nothing": Entry("analyze probes --model_dir={trained}/model", ("--tags", "--relations", "--entities", "--edges")),
    "probes of no step": Entry(
        "analyze probes --model_dir={trained}/model@7 --tags=tags.conll --tags_held_out=tags.conll",
        ("{trained}/model/checkpoints", "step", "7"),
        {"tags.conll": "it\tPRON\nis\tVERB\n"},
    ),
    "probes of a line without a tag": Entry(
        "analyze probes --model_dir={trained}/model --tags=tags.conll",
        ("tags.conll:2", "1 column", "--text", "--label"),
        {"tags.conll": "it\tPRON\nis\n"},
    ),
    "probes with a rate beyond floats": Entry(
        "analyze probes --model_dir={trained}/model --tags=tags.conll --learning_rate=1e300",
        ("--learning_rate=1e+300", "1e+30"),
        {"tags.conll": "it\tPRON\nis\tVERB\n"},
    ),
    "attention of a layer too many": Entry(
        "analyze attention --model_dir={trained}/model --text=it --layers=9 --output=page.html", ("--layers", "9", "2")
    ),
    "importance on no batch": Entry("analyze importance --model_dir={trained}/model --batches=0", ("--batches=0",)),
    "a model without nothing": Entry(
        "prune --model_dir={trained}/model --output=out", ("--heads", "--neurons", "--layers", "--weights")
    ),
    "a model without all layers": Entry(
        "prune --model_dir={trained}/model --layers=2 --skip_evaluation --output=out", ("--layers=2", "1")
    ),
    "gates that are not there": Entry(
        "prune --model_dir={trained}/model --gates --skip_evaluation --output=out", ("no gates", "FineTuning.gates")
    ),
    "entities of text without marks": Entry(
        "entities --cache_dir={trained}/model/cache --model_dir={trained}/model --output=out",
        ("{trained}/model/cache", "--marks=names"),
    ),
    "heads removed twice": Entry("prune --model_dir={trained}/model --heads=2 --output=out", ("--heads=2", "1")),
    "a share of no head": Entry("prune --model_dir={trained}/model --heads=0.1 --output=out", ("--heads=0.1", "2 heads")),
    "a share of no masked head": Entry(
        "prune --model_dir={trained}/model --heads=0.1 --form=masked --output=out", ("--heads=0.1", "4 heads")
    ),
    "a share of no neuron": Entry("prune --model_dir={trained}/model --neurons=0.01 --output=out", ("--neurons=0.01", "32")),
    "a form of no heads": Entry("prune --model_dir={trained}/model --layers=1 --form=masked --output=out", ("--form", "--heads")),
    "neighbours of nothing": Entry(
        "analyze neighbours --model_dir={trained}/model --input={trained}/text/train.txt", ("--text", "--word")
    ),
    "neighbours of two words": Entry(
        "analyze neighbours --model_dir={trained}/model --input={trained}/text/train.txt --text='the [value] is a [list]'",
        ("--text", "2"),
    ),
    "a pair of words without a score": Entry(
        "analyze similarity --model_dir={trained}/model --input={trained}/text/train.txt --pairs=pairs.tsv",
        ("pairs.tsv:2",),
        {"pairs.tsv": "list\tvalue\t3\nlist\tvalue\n"},
    ),
    "a step of no other model": Entry(
        "analyze layers --model_dir={trained}/model --input={trained}/text/train.txt --other_step=3", ("--other_step", "--other")
    ),
    "a misspelt flag of the doctor": Entry("doctor --skip_traning", ("--skip_traning", "--skip_training")),
    "a completion for another shell": Entry("completion fish", ("fish", "bash", "zsh")),
    "a report of no run": Entry("report {trained}/vocab --output=page.html", ("{trained}/vocab", "config.gin", "--vocab")),
    "a report over tokens that are not counted": Entry(
        "report old --x=tokens --output=page.html",
        ("--x=tokens", "old", "metrics.jsonl"),
        {"old/metrics.jsonl": '{"step": 1, "split": "train", "loss": 2.0}\n'},
    ),
    "a study of another name": Entry("ablate missing.gin {text} --output=out", ("missing.gin", "bertfam configs studies")),
    "a study of one seed": Entry(
        "ablate studies/albert_sharing.gin {text} --output=out --gin.Study.seeds=(0,)",
        ("--gin.Study.seeds=(0,)", "Study.claims", "albert_sharing.gin"),
    ),
    "int4 with quantised inputs": Entry(
        "quantize --model_dir={trained}/model --bits=4 --output=out", ("--bits=4", "--activations=none", "dynamic")
    ),
    "ranges of no texts": Entry(
        "quantize --model_dir={trained}/model --activations=static --output=out", ("--activations=static", "--calibration")
    ),
    "a length of ranges that are not measured": Entry(
        "quantize --model_dir={trained}/model --length=64 --output=out", ("--length", "--activations=static", "--calibration")
    ),
    "a format of ranges that are not measured": Entry(
        "quantize --model_dir={trained}/model --format=csv --output=out", ("--format", "--activations=static", "--calibration")
    ),
    "a merge of one checkpoint": Entry(
        "merge --model_dir={trained}/model --output=out",
        ("--model_dir={trained}/model@all", "20", "24"),
    ),
    "a merge with a weight too few": Entry(
        "merge --model_dir={trained}/model@5,10,24 --weights=1,2 --output=out",
        ("--weights", "2", "3", "{trained}/model@5", "{trained}/model@24"),
    ),
    "a merge with weights beyond floats": Entry(
        "merge --model_dir={trained}/model@5,10 --weights=1e308,1e308 --output=out", ("--weights", "infinite")
    ),
    "a step of a Hugging Face folder": Entry("quantize --model_dir={hf} --step=0 --output=out", ("--step", "{hf}")),
    "a merge of no step": Entry(
        "merge --model_dir={trained}/model@5,7 --output=out",
        ("{trained}/model/checkpoints", "step", "7"),
    ),
    "a merge of a word": Entry(
        "merge --model_dir={trained}/model@last --output=out",
        ("--model_dir={trained}/model@last", "last", "best", "all"),
    ),
    "ties without a base": Entry(
        "merge --model_dir={trained}/model@5,24 --method=ties --output=out",
        ("--method=ties", "--base"),
    ),
    "a decay of an average": Entry(
        "merge --model_dir={trained}/model@5,24 --decay=0.5 --output=out",
        ("--decay", "--method=exponential"),
    ),
    "a list of nothing": Entry(
        "checkpoints --model_dir=nowhere",
        ("nowhere", "checkpoints"),
    ),
    "a step beyond the run": Entry(
        "preview --model_dir={trained}/model --step=24",
        ("--step=24",),
    ),
    "an import of nothing": Entry(
        "import --input=bert --output=out",
        ("bert/config.json",),
    ),
    "an import without config": Entry(
        "import --input=bert --output=out",
        ("bert/config.json",),
        {"bert/vocab.txt": "a\n"},
    ),
    "an import of a damaged config": Entry(
        "import --input=bert --output=out",
        ("bert/config.json",),
        {"bert": Copy("{hf}"), "bert/config.json": "{"},
    ),
    "an import of another architecture": Entry(
        "import --input=bert --output=out",
        ("bert/config.json", "model_type", "llama"),
        {"bert": Copy("{hf}"), "bert/config.json": '{"model_type": "llama"}'},
    ),
    "an import of more layers": Entry(
        "import --input=bert --output=out",
        ("bert.encoder.layer.2.attention.self.query.weight", "config.json"),
        {"bert": Copy("{hf}"), "bert/config.json": Changed({"num_hidden_layers": 3})},
    ),
    "an import of another width": Entry(
        "import --input=bert --output=out",
        ("bert.encoder.layer.0.intermediate.dense.weight", "config.json", "64"),
        {"bert": Copy("{hf}"), "bert/config.json": Changed({"intermediate_size": 64})},
    ),
    "an import of an unknown activation": Entry(
        "import --input=bert --output=out",
        ("bert", "config.json", "hidden_act", "mish", "gelu_new", "gelu_pytorch_tanh"),
        {"bert": Copy("{hf}"), "bert/config.json": Changed({"hidden_act": "mish"})},
    ),
    "an import of a string for a rate": Entry(
        "import --input=bert --output=out",
        ("bert", "config.json", "hidden_dropout_prob", "0.1"),
        {"bert": Copy("{hf}"), "bert/config.json": Changed({"hidden_dropout_prob": "0.1"})},
    ),
    "an import of relative positions": Entry(
        "import --input=bert --output=out",
        ("bert", "config.json", "position_embedding_type", "relative_key", "absolute"),
        {"bert": Copy("{hf}"), "bert/config.json": Changed({"position_embedding_type": "relative_key"})},
    ),
    "an import without weights": Entry(
        "import --input=bert --output=out",
        ("bert", "model.safetensors"),
        {"bert": Copy("{hf}"), "bert/model.safetensors": None},
    ),
    "an import of a pickle": Entry(
        "import --input=bert --output=out",
        ("bert", "pytorch_model.bin", "safetensors", "model.save_pretrained(DIR"),
        {"bert": Copy("{hf}"), "bert/model.safetensors": None, "bert/pytorch_model.bin": "x"},
    ),
    "an import of weights that are cut off": Entry(
        "import --input=bert --output=out",
        ("bert/model.safetensors",),
        {"bert": Copy("{hf}"), "bert/model.safetensors": b"@"},
    ),
    "an import of a damaged index": Entry(
        "import --input=bert --output=out",
        ("bert/model.safetensors.index.json", "weight_map"),
        {"bert": Copy("{hf}"), "bert/model.safetensors": None, "bert/model.safetensors.index.json": "{}"},
    ),
    "an import without a missing shard": Entry(
        "import --input=bert --output=out",
        ("bert/part-1.safetensors",),
        {
            "bert": Copy("{hf}"),
            "bert/model.safetensors": None,
            "bert/model.safetensors.index.json": '{"weight_map": {"a": "part-1.safetensors"}}',
        },
    ),
    "an import without a tokenizer": Entry(
        "import --input=bert --output=out",
        ("bert", "tokenizer.json", "vocab"),
        {"bert": Copy("{hf}"), "bert/tokenizer.json": None, "bert/vocab.txt": None},
    ),
    "an import of a run": Entry(
        "import --input={trained}/model --output=out",
        ("{trained}/model", "--model_dir"),
    ),
}

# Where something is to be written.
DISK = {
    "a model folder that is a file": Entry(
        "pretrain --gin_file={trained}/run.gin {text} --model_dir=a",
        ("--model_dir=a",),
        {"a": ""},
    ),
    "a model folder of something else": Entry(
        "pretrain --gin_file={trained}/run.gin {text} --model_dir=a",
        ("--model_dir=a", "notes.txt", "config.gin"),
        {"a/notes.txt": ""},
    ),
    "a model folder below a file": Entry(
        "pretrain --gin_file={trained}/run.gin {text} --model_dir=a/model",
        ("a/model", "{here}/a"),
        {"a": ""},
    ),
    "a cache below a file": Entry(
        "cache --output=a/cache --vocab={trained}/vocab --input={trained}/text/train.txt ",
        ("a/cache", "{here}/a"),
        {"a": ""},
    ),
    "a cache in a folder of something else": Entry(
        "cache --output=a --vocab={trained}/vocab --input={trained}/text/train.txt ",
        ("a exists",),
        {"a/notes.txt": ""},
    ),
    "a vocabulary in a folder of something else": Entry(
        "vocab --overwrite --output=a --input={trained}/text/train.txt ",
        ("--output=a", "notes.txt"),
        {"a/notes.txt": ""},
    ),
    "a vocabulary over another": Entry(
        "vocab --output={trained}/vocab --input={trained}/text/train.txt ",
        ("--output={trained}/vocab", "special_tokens_map.json", "--overwrite"),
    ),
    "a vocabulary that is a file": Entry(
        "vocab --output=a --input={trained}/text/train.txt ",
        ("--output=a",),
        {"a": ""},
    ),
    "an export over something": Entry(
        "export --model_dir={trained}/model --output=a",
        ("a exists",),
        {"a/notes.txt": ""},
    ),
    "an export among the checkpoints": Entry(
        "export --model_dir={trained}/model --output={trained}/model/checkpoints/out",
        ("--output={trained}/model/checkpoints/out", "{trained}/model/checkpoints"),
    ),
    "a copy over its run": Entry(
        "checkpoints --model_dir={trained}/model --copy_weights={trained}/model",
        ("--copy_weights={trained}/model",),
    ),
    "an export below a file": Entry(
        "export --model_dir={trained}/model --output=a/out",
        ("a/out", "{here}/a"),
        {"a": ""},
    ),
    "an import over something": Entry(
        "import --input={hf} --output=a",
        ("a exists",),
        {"a": ""},
    ),
    "a copy over something": Entry(
        "checkpoints --model_dir={trained}/model --copy_weights=a",
        ("a exists",),
        {"a": ""},
    ),
    "a page over another": Entry(
        "preview --model_dir={trained}/model --html=a.html",
        ("--html=a.html",),
        {"a.html": ""},
    ),
    "a page that is a folder": Entry(
        "preview --model_dir={trained}/model --html=a",
        ("--html=a",),
        {"a/notes.txt": ""},
    ),
    "a page in no folder": Entry(
        "preview --model_dir={trained}/model --html=a/b.html",
        ("--html=a/b.html",),
    ),
    "checkpoints that are a file": Entry(
        "pretrain --model_dir=model",
        ("{here}/model/checkpoints",),
        {"model": Copy("{trained}/model"), "model/checkpoints": ""},
    ),
}

# Words of the command line.
FLAGS = {
    "no command": Entry(
        "",
        ("no command", "pretrain", "export"),
    ),
    "a misspelt command": Entry(
        "pretrian {run}",
        ("pretrian",),
    ),
    "a flag before the command": Entry(
        "--json pretrain {run}",
        ("--json",),
    ),
    "a misspelt flag": Entry(
        "evaluate --modle_dir=model",
        ("evaluate", "--modle_dir"),
    ),
    "a word too many": Entry(
        "pretrain {run} more",
        ("pretrain",),
    ),
    "a flag without its value": Entry(
        "evaluate --model_dir",
        ("--model_dir=VALUE", "evaluate", "--help"),
    ),
    "an empty value": Entry(
        "evaluate --model_dir=",
        ("--model_dir=",),
    ),
    "a bucket": Entry(
        "evaluate --model_dir=s3://bucket/model",
        ("--model_dir=s3://bucket/model", "gs://"),
    ),
    "a missing flag": Entry(
        "export --model_dir=model",
        ("--output", "export", "--help"),
    ),
    "no text to fill": Entry(
        "fill --model_dir={trained}/model",
        ("fill", "--help"),
    ),
    "a word for a number": Entry(
        "preview --model_dir={trained}/model --examples=five",
        ("--examples=five",),
    ),
    "a negative number": Entry(
        "preview --model_dir={trained}/model --step=-1",
        ("--step=-1",),
    ),
    "no rows": Entry(
        "preview --model_dir={trained}/model --examples=0",
        ("--examples=0",),
    ),
    "a misspelt choice": Entry(
        "cache --output=c --vocab={trained}/vocab --input=a.txt --input_format=line",
        ("--input_format=line",),
    ),
    "an unknown choice": Entry(
        "export --model_dir={trained}/model --output=out --dtype=int8",
        ("--dtype=int8",),
    ),
    "gin for a command without": Entry(
        "fill --model_dir={trained}/model [MASK] --gin.SEED=1",
        ("bertfam fill", "--gin.SEED=1"),
    ),
    "gin without a value": Entry(
        "pretrain {run} --gin.SEED",
        ("--gin.SEED", "--gin.NAME=value"),
    ),
    "gin of nothing": Entry(
        "pretrain {run} --gin.SEED=",
        ("--gin.SEED=",),
    ),
    "two sources of text": Entry(
        "encode --vocab={trained}/vocab --input=a.txt One.",
        ("--input", "encode"),
    ),
    "a file to encode that is not there": Entry(
        "encode --vocab={trained}/vocab --input=a.txt",
        ("a.txt",),
    ),
    "a file to encode in another encoding": Entry(
        "encode --vocab={trained}/vocab --input=a.txt",
        ("a.txt:1",),
        {"a.txt": b"Caf\xe9\n"},
    ),
    "an unknown vocabulary to encode with": Entry(
        "encode --vocab=nowhere One.",
        ("nowhere", "tokenizer.json"),
    ),
    "overwriting nothing": Entry(
        "preview --model_dir={trained}/model --overwrite",
        ("--overwrite", "--html=FILE"),
    ),
    "processes below nothing": Entry(
        "cache --output=c --vocab={trained}/vocab --input={trained}/text/train.txt --processes=-1",
        ("--processes=-1",),
    ),
    "processes of Beam": Entry(
        "cache --output=c --vocab={trained}/vocab --input={trained}/text/train.txt --processes=2 --beam",
        ("--processes", "--beam"),
    ),
    "a vocabulary of no text": Entry(
        "vocab --output=v",
        ("--input=GLOB", "--task=python_docs"),
    ),
    "a vocabulary too small": Entry(
        "vocab --output=v --size=5 --input={trained}/text/train.txt ",
        ("--size=5",),
    ),
    "a vocabulary too large": Entry(
        "vocab --output=v --size=100000000000 --input={trained}/text/train.txt ",
        ("--size=100000000000", "10,000,000"),
    ),
    "an option of another kind": Entry(
        "vocab --output=v --kind=bpe --cased --input={trained}/text/train.txt ",
        ("--cased", "--kind=wordpiece", "--kind=bpe"),
    ),
    "a layout without the unknown": Entry(
        "vocab --output=v --layout=gpt2 --input={trained}/text/train.txt ",
        ("--layout=gpt2", "--kind=byte_bpe"),
    ),
    "pairs that never occur": Entry(
        "vocab --output=v --min_frequency=0 --input={trained}/text/train.txt ",
        ("--min_frequency=0",),
    ),
    "more than all characters": Entry(
        "vocab --output=v --kind=unigram --character_coverage=1.5 --input={trained}/text/train.txt ",
        ("--character_coverage=1.5", "0.5"),
    ),
    "some flags of several processes": Entry(
        "pretrain {run} --num_processes=2",
        ("--coordinator", "--process_index", "--num_processes"),
    ),
    "no address": Entry(
        "pretrain {run} --coordinator=localhost --num_processes=2 --process_index=0",
        ("--coordinator=localhost",),
    ),
    "no processes": Entry(
        "pretrain {run} --coordinator=localhost:8476 --num_processes=0 --process_index=0",
        ("--num_processes=0",),
    ),
    "a process too many": Entry(
        "pretrain {run} --coordinator=localhost:8476 --num_processes=2 --process_index=2",
        ("--process_index=2",),
    ),
    "no time to wait": Entry(
        "pretrain {run} --coordinator=localhost:8476 --num_processes=2 --process_index=0 --initialization_timeout=0",
        ("--initialization_timeout=0",),
    ),
}

# Teachers and students.
TEACHING = {
    "no objective that distills": Entry(
        "distill {run} --teacher={trained}/model",
        ("{trained}/run.gin", "--gin_file=objectives/distillation.gin"),
    ),
    "no teacher": Entry("distill {distilled}", ("distill", "--teacher=DIR")),
    "a teacher that is not there": Entry(
        "distill {distilled} --teacher=none",
        ("none", "config.gin", "config.json"),
    ),
    "a step without its teacher": Entry("distill {distilled} --teacher_step=5", ("--teacher_step",)),
    "layers that are no numbers": Entry(
        "distill {distilled} --teacher={trained}/model --layers=all",
        ("--layers=all",),
    ),
    "a layer that the teacher lacks": Entry(
        "distill {distilled} --teacher={trained}/model --layers=0,2",
        ("layers", "0", "2"),
    ),
    "too few layers": Entry(
        "distill {distilled} --teacher={trained}/model --layers=0",
        ("layers", "0"),
    ),
    "another vocabulary than the teacher's": Entry(
        "distill --gin_file={trained}/run.gin --gin_file=objectives/distillation.gin --teacher={trained}/model "
        "--input={trained}/text/train.txt --vocab={trained}/other-vocab --model_dir=model",
        ("teacher", "{trained}/model"),
    ),
}

GROUPS = {
    "teaching": TEACHING,
    "configuration": CONFIGURATION,
    "optimizers": OPTIMIZERS,
    "mesh": MESH,
    "data": DATA,
    "checkpoints": CHECKPOINTS,
    "disk": DISK,
    "flags": FLAGS,
    "writing": WRITING,
    "planning": PLANNING,
}
