"""The mistakes that people make, and the line that each gets: name -> command line, line, files (see `catalogue.Entry`)."""

from catalogue import Changed, Copy, Entry
from planning import PLANNING
from writing import WRITING

# gin files, gin flags, and settings that clash.
CONFIGURATION = {
    "no configuration": Entry(
        "pretrain {text} --model_dir=model",
        "no configuration: give --gin_file=FILE (runs/quickstart.gin, say)",
    ),
    "a gin file that is not there": Entry(
        "pretrain --gin_file=runs/quickstrat.gin {text} --model_dir=model",
        "--gin_file=runs/quickstrat.gin: no gin file runs/quickstrat.gin here or among those of bertfam; did you "
        "mean runs/quickstart.gin or runs/quickstart_t5.gin or runs/quickstart_gpt2.gin?",
    ),
    "a gin file that is a folder": Entry(
        "pretrain --gin_file=. {text} --model_dir=model",
        "--gin_file=.: . is a folder; name a gin file in it",
    ),
    "a gin file that is binary": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "--gin_file=a.gin: a.gin:2 is not UTF-8; a gin file is text, which is saved as UTF-8",
        {"a.gin": b"SEED = 1\n\xff\xfe\x00"},
    ),
    "an empty gin file": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "a.gin: Run needs objective, which nothing binds; add Run.objective = ...",
        {"a.gin": ""},
    ),
    "a misspelt configurable": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "a.gin:2: unknown configurable BertConfg; did you mean BertConfig?",
        {"a.gin": 'include "{trained}/run.gin"\nBertConfg.num_layers = 3\n'},
    ),
    "a misspelt parameter": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "a.gin:2: BertConfig has no parameter num_layer; did you mean num_layers?",
        {"a.gin": 'include "{trained}/run.gin"\nBertConfig.num_layer = 3\n'},
    ),
    "a misspelt parameter in a flag": Entry(
        "pretrain {run} --gin.BertConfig.num_layer=3",
        "--gin.BertConfig.num_layer=3: BertConfig has no parameter num_layer; did you mean num_layers?",
    ),
    "a misspelt macro": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "a.gin:2: nothing refers to the macro TRAIN_STEP; did you mean TRAIN_STEPS?",
        {"a.gin": 'include "{trained}/run.gin"\nTRAIN_STEP = 3\n'},
    ),
    "a macro that is not defined": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "a.gin:2: the macro %LAYERS is not defined; define it by a line LAYERS = ...",
        {"a.gin": 'include "{trained}/run.gin"\nBertConfig.num_layers = %LAYERS\n'},
    ),
    "a macro within itself": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "a.gin:2: the macro A is defined by itself; give it a value",
        {"a.gin": 'include "{trained}/run.gin"\nA = %B\nB = %A\nBertConfig.num_layers = %A\n'},
    ),
    "a misspelt scope": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "a.gin:2: no reference enters the scope lng of lng/Stage.steps; did you mean long?",
        {"a.gin": 'include "{trained}/run.gin"\nlng/Stage.steps = 3\n'},
    ),
    "a value bound twice": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "a.gin:3: Execution.remat is bound in line 2 already; keep one of them",
        {"a.gin": 'include "{trained}/run.gin"\nExecution.remat = "full"\nExecution.remat = "none"\n'},
    ),
    "a string for a number": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "a.gin:2: BertConfig.num_layers wants int, got '3'; write 3",
        {"a.gin": "include \"{trained}/run.gin\"\nBertConfig.num_layers = '3'\n"},
    ),
    "a number with a point for a whole one": Entry(
        "pretrain {run} --gin.BertConfig.num_layers=2.0",
        "--gin.BertConfig.num_layers=2.0: BertConfig.num_layers wants int, got 2.0; write 2",
    ),
    "a truth for a number": Entry(
        "pretrain {run} --gin.Run.seed=True",
        "--gin.Run.seed=True: Run.seed wants int, got True",
    ),
    "a word without quotes": Entry(
        "pretrain {run} --gin.Execution.dtype=bfloat16",
        "--gin.Execution.dtype=bfloat16: bfloat16 is no value; write '\"bfloat16\"' for a string, %bfloat16 for a "
        "macro, or @bfloat16()",
    ),
    "an unknown choice": Entry(
        "pretrain {run} --gin.Execution.dtype='\"float16\"'",
        "--gin.Execution.dtype=\"float16\": Execution.dtype wants one of 'float32', 'bfloat16', got 'float16'; write 'bfloat16'",
    ),
    "a number without end": Entry(
        "pretrain {run} --gin.LinearDecay.peak=1e999",
        "--gin.LinearDecay.peak=1e999: LinearDecay.peak is inf: numbers end at 3.4e38, and integers at 2^63; write a smaller one",
    ),
    "a number of too many digits": Entry(
        "pretrain {run} --gin.Run.log_every=10000000000000000000",
        "--gin.Run.log_every=10000000000000000000: Run.log_every is 10000000000000000000: numbers end at 3.4e38, "
        "and integers at 2^63; write a smaller one",
    ),
    "a part without brackets": Entry(
        "pretrain {run} --gin.Run.optimizer=@Lamb",
        "--gin.Run.optimizer=@Lamb: Run.optimizer wants Optimizer, got @Lamb; write @Lamb()",
    ),
    "a part of another kind": Entry(
        "pretrain {run} --gin.Run.objective=@BertConfig()",
        "--gin.Run.objective=@BertConfig(): Run.objective wants Objective, got @BertConfig()",
    ),
    "a value that is never bound": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "a.gin:3: @Stage() needs steps, which nothing binds; add Stage.steps = ...",
        {"a.gin": 'include "objectives/mlm_nsp.gin"\nRun.data = @TextData()\nRun.stages = (@Stage(),)\nMODEL = @BertConfig()\n'},
    ),
    "a value left to the user": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "a.gin:2: Run.keep_every has no value yet; add Run.keep_every = ...",
        {"a.gin": 'include "{trained}/run.gin"\nRun.keep_every = %gin.REQUIRED\n'},
    ),
    "a flag that changes nothing": Entry(
        "pretrain {run} --gin.Lamb.b1=0.8",
        "--gin.Lamb.b1=0.8: nothing refers to Lamb, so this changes nothing; bind @Lamb() where it belongs",
    ),
    "a bracket that is never closed": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "a.gin:2: a bracket or string that opens here is never closed",
        {"a.gin": 'include "{trained}/run.gin"\nRun.stages = (@short/Stage(),\n'},
    ),
    "brackets within brackets": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "a.gin: brackets within brackets, too deep to be read; take some out",
        {"a.gin": 'include "{trained}/run.gin"\nRun.log_every = ' + "(" * 1000},
    ),
    "an include that is not there": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "a.gin:2: no gin file b.gin here or among those of bertfam; did you mean a.gin?",
        {"a.gin": 'SEED = 1\ninclude "b.gin"\n'},
    ),
    "an include that is binary": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "a.gin:1: b.gin:1 is not UTF-8; a gin file is text, which is saved as UTF-8",
        {"a.gin": 'include "b.gin"\n', "b.gin": b"\x80\x81"},
    ),
    "an include that includes its includer": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "b.gin:1: a.gin includes b.gin includes a.gin; take out one include",
        {"a.gin": 'include "b.gin"\n', "b.gin": 'include "a.gin"\n'},
    ),
    "an import that is not there": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "a.gin:2: no module qqqqqqqq; install it, or give the command in the folder where it lies",
        {"a.gin": 'include "{trained}/run.gin"\nimport qqqqqqqq\n'},
    ),
    "an import that does not parse": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "a.gin:2: broken.py:1: SyntaxError: '(' was never closed (broken.py, line 1)",
        {"a.gin": 'include "{trained}/run.gin"\nimport broken\n', "broken.py": "x = (\n"},
    ),
    "an import that ends the process": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "a.gin:2: ends.py:2: SystemExit: 3",
        {"a.gin": 'include "{trained}/run.gin"\nimport ends\n', "ends.py": "import sys\nsys.exit(3)\n"},
    ),
    "a module that is a file": Entry(
        "pretrain {run} --module_import=books.py",
        "--module_import=books.py: no module books; install it, or give the command in the folder where it lies",
    ),
    "no stages": Entry(
        "pretrain {run} '--gin.Run.stages=()'",
        "Run: stages is empty; a run needs at least one Stage (Run.stages from --gin.Run.stages=())",
    ),
    "a stage without steps": Entry(
        "pretrain {run} --gin.TRAIN_STEPS=0 --gin.short/Stage.steps=0",
        "Stage: steps 0 must be at least 1 and below 2^31 (short/Stage.steps from --gin.short/Stage.steps=0)",
    ),
    "more steps than can be counted": Entry(
        "pretrain {run} --gin.long/Stage.steps=2147483647",
        "Run: stages have 2,147,483,659 steps, and a run has fewer than 2^31 (Run.stages from {trained}/run.gin:10)",
    ),
    "rows longer than the model": Entry(
        "pretrain {run} --gin.long/Stage.length=32",
        "Run: stages[1]: Stage.length 32 is more than BertConfig.max_length 24; shorten the rows, or enlarge the "
        "model's table of positions (Run.stages from {trained}/run.gin:10)",
    ),
    "rows too short for a pair": Entry(
        "pretrain {run} --gin.short/Stage.length=4",
        "Run: stages[0]: length 4 is too short for a sentence pair; use at least 5 (Run.stages from {trained}/run.gin:10)",
    ),
    "heads that do not divide the model": Entry(
        "pretrain {run} --gin.BertConfig.num_heads=3",
        "BertConfig.hidden_size = 16 is not a multiple of num_heads = 3: change one of them "
        "(BertConfig.hidden_size from {trained}/run.gin:17, BertConfig.num_heads from "
        "--gin.BertConfig.num_heads=3)",
    ),
    "a layer of nothing": Entry(
        "pretrain {run} --gin.BertConfig.feed_forward_size=0",
        "BertConfig.feed_forward_size = 0 must be at least 1 and below 2^31 (BertConfig.feed_forward_size from "
        "--gin.BertConfig.feed_forward_size=0)",
    ),
    "another vocabulary size": Entry(
        "pretrain {run} --gin.BertConfig.vocab_size=1000",
        "BertConfig.vocab_size is 1000 and the vocabulary has 300 tokens; leave vocab_size out, or give the "
        "vocabulary that it was meant for",
    ),
    "rows without what the objective reads": Entry(
        "pretrain {run} --gin.TextData.rows=@Chunks()",
        "Run: stages[0]: MlmNsp reads next_sentence_labels, which rows of Chunks lack: set TextData.rows to "
        "others (@SentencePairs() has all that MlmNsp reads), or Run.objective to another (@Mlm()) (Run.objective "
        "from {gin_configs}/objectives/mlm_nsp.gin:3, Run.stages from {trained}/run.gin:10)",
    ),
    "pairs without the labels that the objective reads": Entry(
        "pretrain --gin_file=a.gin {text} --model_dir=model",
        "Run: stages[0]: MlmSop reads sentence_order_labels, which rows of SentencePairs lack: set TextData.rows to "
        '@SentencePairs() and SentencePairs.relation to "order", or Run.objective to another (@Mlm()) (Run.objective from '
        "a.gin:2, Run.stages from {trained}/run.gin:10)",
        {"a.gin": 'include "{trained}/run.gin"\nRun.objective = @MlmSop()\nMlmSop.model = @BertConfig()\n'},
    ),
    "a share of random pairs where there is another relation": Entry(
        "pretrain {run} '--gin.SentencePairs.relation=\"structure\"' --gin.SentencePairs.random_next_rate=0.2",
        "SentencePairs: random_next_rate 0.2 goes with relation next, not structure; leave it out (SentencePairs.relation from "
        '--gin.SentencePairs.relation="structure", SentencePairs.random_next_rate from --gin.SentencePairs.random_next_rate=0.2)',
    ),
    "boundaries of single tokens": Entry(
        "pretrain {run} --gin.BertMasking.boundaries=True",
        "BertMasking: boundaries are True, and beside what SingleTokens chooses it may choose more: set choice to "
        "@WordSpans(), or boundaries to False (BertMasking.boundaries from --gin.BertMasking.boundaries=True)",
    ),
    "windows of one token": Entry(
        "pretrain {run} --gin.BertMasking.shuffling=@ShuffledWindows() --gin.ShuffledWindows.size=1",
        "ShuffledWindows: size 1 is not among 2 to 100 tokens (ShuffledWindows.size from --gin.ShuffledWindows.size=1)",
    ),
    "units that all weigh nothing": Entry(
        "pretrain {run} --gin.BertMasking.choice=@Units() --gin.Units.basic=0.0 --gin.Units.phrase=0.0 --gin.Units.entity=0.0",
        "Units: basic, phrase and entity (0.0, 0.0, 0.0) are no weights; they must be at least 0, and one above 0 (Units.basic "
        "from --gin.Units.basic=0.0, Units.phrase from --gin.Units.phrase=0.0, Units.entity from --gin.Units.entity=0.0)",
    ),
    "more predictions than tokens": Entry(
        "pretrain {run} --gin.BertMasking.max_predictions=17",
        "Run: stages[0]: 17 predictions do not fit into a row of 16 tokens; make BertMasking.max_predictions "
        "smaller (Run.stages from {trained}/run.gin:10)",
    ),
    "shares of more than all": Entry(
        "pretrain {run} --gin.BertMasking.random_share=0.3",
        "BertMasking: mask_share 0.8 and random_share 0.3 must be >= 0 with a sum of at most 1 "
        "(BertMasking.random_share from --gin.BertMasking.random_share=0.3)",
    ),
    "no noise": Entry(
        "pretrain {run} --gin.BertMasking.rate=0.0",
        "BertMasking: rate 0.0 is not in (0, 1] (BertMasking.rate from --gin.BertMasking.rate=0.0)",
    ),
    "losses of no weight": Entry(
        "pretrain {run} --gin.MlmNsp.mlm=0.0 --gin.MlmNsp.nsp=0.0",
        "MlmNsp: mlm and nsp are both 0: nothing would be learnt; set one above 0 (MlmNsp.mlm from "
        "--gin.MlmNsp.mlm=0.0, MlmNsp.nsp from --gin.MlmNsp.nsp=0.0)",
    ),
    "streams of packed rows": Entry(
        "pretrain {run} '--gin.TextData.order=\"streams\"' --gin.TextData.rows=@Packed()",
        'TextData.order = "streams" needs rows that follow each other, and packed ones do not: use @Chunks() '
        '(TextData.rows from --gin.TextData.rows=@Packed(), TextData.order from --gin.TextData.order="streams")',
    ),
    "an empty name": Entry(
        "pretrain {run} '--gin.TextData.cache_dir=\"\"'",
        "TextData.cache_dir is empty: name a folder, or leave it out for MODEL_DIR/cache (TextData.cache_dir from "
        '--gin.TextData.cache_dir="")',
    ),
    "a best metric that is not measured": Entry(
        "pretrain {run} '--gin.Run.keep_best=\"accuracy\"'",
        "Run.keep_best is 'accuracy', which no evaluation measures; did you mean nsp_accuracy?",
    ),
    "a best metric without evaluation": Entry(
        "pretrain {run} '--gin.Run.keep_best=\"mlm_loss\"' --gin.EVAL_EVERY=0",
        "Run: keep_best is 'mlm_loss' and eval_every is 0: nothing is measured; set eval_every (Run.eval_every "
        "from {gin_configs}/runs/defaults.gin:14 (%EVAL_EVERY from --gin.EVAL_EVERY=0), Run.keep_best from "
        '--gin.Run.keep_best="mlm_loss")',
    ),
}

# Optimizers, schedules, ramps.
OPTIMIZERS = {
    "a negative rate": Entry(
        "pretrain {run} --gin.LinearDecay.peak=-1e-4",
        "LinearDecay: peak -0.0001 is no rate; it must be a number of at least 0 (LinearDecay.peak from "
        "--gin.LinearDecay.peak=-1e-4)",
    ),
    "a negative warm-up": Entry(
        "pretrain {run} --gin.LinearDecay.warmup_steps=-1",
        "LinearDecay: warmup_steps -1 is negative; 0 has no warm-up (LinearDecay.warmup_steps from "
        "--gin.LinearDecay.warmup_steps=-1)",
    ),
    "a floor above the peak": Entry(
        "pretrain {run} --gin.LinearDecay.floor=2.0",
        "LinearDecay: floor 2.0 is not in [0, 1]: it is a share of the peak (LinearDecay.peak from "
        "{trained}/run.gin:21, LinearDecay.floor from --gin.LinearDecay.floor=2.0)",
    ),
    "a power of nothing": Entry(
        "pretrain {run} --gin.AdamW.schedule=@PolynomialDecay() --gin.PolynomialDecay.power=0.0",
        "PolynomialDecay: power 0.0 is not above 0; 1 is linear (PolynomialDecay.power from --gin.PolynomialDecay.power=0.0)",
    ),
    "a moment that never forgets": Entry(
        "pretrain {run} --gin.AdamW.b2=1.0",
        "AdamW: b2 1.0 is not in [0, 1) (AdamW.b2 from --gin.AdamW.b2=1.0)",
    ),
    "a moment in too few bits": Entry(
        "pretrain {run} '--gin.AdamW.nu_dtype=\"bfloat16\"'",
        "AdamW: nu_dtype bfloat16 cannot follow a moment with b2 0.999, whose changes it rounds away; use "
        'float32, or a b2 of at most 0.99 (AdamW.nu_dtype from --gin.AdamW.nu_dtype="bfloat16")',
    ),
    "gradients clipped to nothing": Entry(
        "pretrain {run} --gin.AdamW.clip_norm=0.0",
        "AdamW: clip_norm 0.0 is not above 0; None does not clip (AdamW.clip_norm from --gin.AdamW.clip_norm=0.0)",
    ),
    "a decay of layers above 1": Entry(
        "pretrain {run} --gin.AdamW.layer_decay=1.5",
        "AdamW: layer_decay 1.5 is not in (0, 1]; 1 gives all layers the same rate (AdamW.layer_decay from "
        "--gin.AdamW.layer_decay=1.5)",
    ),
    "iterations without end": Entry(
        "pretrain {run} --gin.Run.optimizer=@Muon() --gin.Muon.iterations=1000000",
        "Muon: iterations 1000000 is not among 1 to 100; 5 are enough (Muon.iterations from --gin.Muon.iterations=1000000)",
    ),
    "an average of the future": Entry(
        "pretrain {run} --gin.Run.average_decay=1.0",
        "Run: average_decay 1.0 is not in [0, 1); None keeps no average (Run.average_decay from --gin.Run.average_decay=1.0)",
    ),
    "a ramp that falls": Entry(
        "pretrain {run} '--gin.Run.stages=(@Ramp(),)' --gin.Ramp.steps=8 --gin.Ramp.length=16 "
        "--gin.Ramp.batch_size=8 --gin.Ramp.first_batch_size=16",
        "Ramp: first_batch_size 16 is more than batch_size 8, which the ramp leads to (Ramp.batch_size from "
        "--gin.Ramp.batch_size=8, Ramp.first_batch_size from --gin.Ramp.first_batch_size=16)",
    ),
}

# The mesh, and what it divides.
MESH = {
    "a mesh of more devices": Entry(
        "pretrain {run} --gin.MeshShape.data=3",
        "a mesh of data=3 does not fit 1 device; the product of MeshShape's axes must be 1, or one be -1, all that the others "
        "leave",
    ),
    "a mesh that leaves none for data": Entry(
        "pretrain {run} --gin.MeshShape.tensor=2",
        "a mesh of tensor=2 does not fit 1 device; the product of MeshShape's axes besides data=-1 must divide 1",
    ),
    "an axis of nothing": Entry(
        "pretrain {run} --gin.MeshShape.fsdp=0",
        "MeshShape: the mesh axis fsdp must be at least 1, or -1, not 0 (MeshShape.fsdp from --gin.MeshShape.fsdp=0)",
    ),
    "microbatches that do not divide the batch": Entry(
        "pretrain {run} --gin.Run.microbatches=3",
        "batch size 8 is not divisible by 3 microbatches; change Stage.batch_size or Run.microbatches",
    ),
}

# Text, vocabularies, token caches.
DATA = {
    "units of text without marks": Entry(
        "pretrain {run} --gin.BertMasking.choice=@Units()",
        "the text has no marks of phrases and entities, which Units masks: give the text with --marks=given or --marks=names, "
        "or set BertMasking.choice to another, as @WholeWords()",
    ),
    "units of a cache without marks": Entry(
        "pretrain --gin_file={trained}/run.gin --cache_dir={trained}/model/cache --model_dir=out "
        "--gin.BertMasking.choice=@Units()",
        "the train split of {trained}/model/cache has no marks of phrases and entities, which Units masks: give the text with "
        "--marks=given or --marks=names, or set BertMasking.choice to another, as @WholeWords()",
    ),
    "marks of no text": Entry(
        "cache --output=cache --vocab={trained}/vocab --marks=names",
        "--marks=names says what is marked in the text: give --input=GLOB or --task=NAME with it; a token cache has the marks "
        "that it was built with (bertfam cache --marks=names)",
    ),
    "a file that is not there": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=none.txt",
        "no such file: none.txt (in {here})",
    ),
    "a glob of nothing": Entry(
        "cache --output=cache --vocab={trained}/vocab --input='*.text'",
        "no file matches *.text (in {here})",
    ),
    "a folder": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=texts",
        "texts is a folder: name the files in it, as texts/*.txt",
        {"texts/a.txt": "One.\n"},
    ),
    "a device": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=/dev/null",
        "/dev/null is a pipe or device, and text is read more than once: write it to a file first",
    ),
    "an empty file": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.txt",
        "a.txt: no document in it, only blank lines or nothing",
        {"a.txt": ""},
    ),
    "blank lines": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.txt --input=b.txt",
        "a.txt, b.txt: no document in them, only blank lines or nothing",
        {"a.txt": "\n \n", "b.txt": ""},
    ),
    "one document": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.txt",
        "the corpus has 1 training document and its rows need at least 2; separate documents by blank lines, or "
        "choose another --input_format",
        {"a.txt": "The only document.\nOf two sentences.\n"},
    ),
    "a binary file": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.txt",
        "a.txt:4: not UTF-8 at byte offset 11: name its encoding with --encoding, or convert it, as with iconv -t UTF-8",
        {"a.txt": b"One.\n\nTwo.\n\x89PNG\x00\n"},
    ),
    "a NUL character": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.txt",
        "a.txt:3: a NUL character: not a text file, or of another --encoding than utf-8",
        {"a.txt": b"One.\n\nTwo.\x00\n"},
    ),
    "another encoding": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.txt",
        "a.txt:4: not UTF-8 at byte offset 14: name its encoding with --encoding, or convert it, as with iconv -t UTF-8",
        {"a.txt": b"One.\n\nTwo.\nCaf\xe9.\n"},
    ),
    "the wrong encoding": Entry(
        "cache --output=cache --vocab={trained}/vocab --input={trained}/text/train.txt --encoding=utf-16",
        "{trained}/text/train.txt: not UTF-16 (UTF-16 stream does not start with BOM): name its encoding with --encoding",
    ),
    "an encoding that does not exist": Entry(
        "cache --output=cache --vocab={trained}/vocab --input={trained}/text/train.txt --encoding=utf-99",
        "TextFiles: encoding 'utf-99' is unknown: use a codec of Python's, as utf-8, utf-16, latin-1, cp1252, "
        "gb18030 or shift_jis (TextFiles.encoding from --encoding=utf-99)",
    ),
    "a language without rules": Entry(
        "cache --output=cache --vocab={trained}/vocab --input={trained}/text/train.txt --language=xx --input_format=lines",
        "TextFiles: language 'xx' has no sentence rules: use one of am, ar, bg, bn, ca, da, de, el, en, es, fi, "
        'fr, gu, hi, hy, it, ja, kk, kn, ml, mr, my, nl, pa, pl, pt, ru, sk, ta, te, uk, zh, or "und" for rules '
        "that fit most others (TextFiles.language from --language=xx)",
    ),
    "a gzip file that is cut off": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.gz",
        "a.gz: the gzip file is cut off or damaged: fetch it again",
        {"a.gz": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x0b\xc9H"},
    ),
    "a zstd file that is damaged": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.zst",
        "a.zst: the zstd file is cut off or damaged: fetch it again",
        {"a.zst": b"(\xb5/\xfdnonsense"},
    ),
    "a JSON line that is cut off": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.jsonl --input_format=jsonl",
        "a.jsonl:2: no JSON (Unterminated string starting at): jsonl has a JSON object a line",
        {"a.jsonl": '{"text": "One."}\n{"text": "Tw'},
    ),
    "a JSON line that is no object": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.jsonl --input_format=jsonl",
        "a.jsonl:3: JSON a list: jsonl has a JSON object a line",
        {"a.jsonl": '{"text": "One."}\n\n["Two."]\n'},
    ),
    "a JSON line without the field": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.jsonl --input_format=jsonl",
        "a.jsonl:2: no field 'text' but body, id: name the text's with --text_field",
        {"a.jsonl": '{"text": "One."}\n{"body": "Two.", "id": 2}\n'},
    ),
    "a JSON line with a number": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.jsonl --input_format=jsonl",
        "a.jsonl:1: the field 'text' is a number, not a string: name the text's with --text_field",
        {"a.jsonl": '{"text": 3}\n'},
    ),
    "text for Parquet": Entry(
        "cache --output=cache --vocab={trained}/vocab --input=a.txt --input_format=parquet",
        "a.txt: no Parquet file, or one that is damaged, after row 0: fetch it again",
        {"a.txt": "One.\n"},
    ),
    "a field of a format without fields": Entry(
        "cache --output=cache --vocab={trained}/vocab --input={trained}/text/train.txt --text_field=body",
        "TextFiles: text_field 'body' goes with jsonl and parquet: sentences has no fields (TextFiles.text_field "
        "from --text_field=body)",
    ),
    "the same text on both sides": Entry(
        "cache --output=cache --vocab={trained}/vocab --input={trained}/text/train.txt "
        "--validation_input={trained}/text/train.txt",
        "{trained}/text/train.txt is both training and validation text: leave it out of one of them",
    ),
    "held-out text that is empty": Entry(
        "cache --output=cache --vocab={trained}/vocab --input={trained}/text/train.txt --validation_input=a.txt",
        "a.txt: no document in it, only blank lines or nothing",
        {"a.txt": "\n"},
    ),
    "no vocabulary": Entry(
        "cache --output=cache --input={trained}/text/train.txt ",
        "no vocabulary: train one with `bertfam vocab --output=DIR` and give it with --vocab=DIR",
    ),
    "a vocabulary that is not there": Entry(
        "cache --output=cache --vocab=nowhere --input={trained}/text/train.txt ",
        "nowhere is not a folder: a vocabulary is a folder with tokenizer.json, vocab.txt, spiece.model, or "
        "vocab.json and merges.txt in it",
    ),
    "a vocabulary of nothing": Entry(
        "cache --output=cache --vocab=texts --input={trained}/text/train.txt ",
        "texts holds no vocabulary (tokenizer.json, vocab.txt, spiece.model, or vocab.json and merges.txt): make "
        "one with bertfam vocab",
        {"texts/a.txt": "One.\n"},
    ),
    "a vocabulary that is damaged": Entry(
        "cache --output=cache --vocab=v --input={trained}/text/train.txt ",
        "v/tokenizer.json is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        {"v/tokenizer.json": "{"},
    ),
    "no text": Entry(
        "cache --output=cache --vocab={trained}/vocab",
        "no text: give --input=GLOB, --task=NAME, or --cache_dir=DIR of a token cache that is built already",
    ),
    "text and a task": Entry(
        "cache --output=cache --vocab={trained}/vocab --input={trained}/text/train.txt --task=python_docs",
        "--input and --task both say where the text comes from; give one of them",
    ),
    "a flag of text without text": Entry(
        "cache --output=cache --vocab={trained}/vocab --encoding=latin-1",
        "--encoding says how --input is read: give --input=GLOB with it",
    ),
    "a cache that is not there": Entry(
        "pretrain --gin_file={trained}/run.gin --model_dir=out --cache_dir=texts",
        "texts holds no token cache (no cache.json); build one with `bertfam cache`",
        {"texts/a.txt": "One.\n"},
    ),
    "a cache that is damaged": Entry(
        "pretrain --gin_file={trained}/run.gin --model_dir=out --cache_dir=c",
        "c/cache.json is damaged ('format'); delete c and build it again",
        {"c/cache.json": "{}"},
    ),
    "a cache of another format": Entry(
        "pretrain --gin_file={trained}/run.gin --model_dir=out --cache_dir=c",
        "c has cache format 1, this version reads 2; delete it and build it again",
        {"c/cache.json": '{"format": 1}'},
    ),
    "a cache with a file of another size": Entry(
        "pretrain --gin_file={trained}/run.gin --model_dir=out --cache_dir=model/cache",
        "model/cache/text/train/tokens.bin has 1 bytes instead of 421596; delete model/cache and build it again",
        {"model": Copy("{trained}/model"), "model/cache/text/train/tokens.bin": "x"},
    ),
    "a cache of another vocabulary": Entry(
        "pretrain --gin_file={trained}/run.gin --model_dir=out --cache_dir={trained}/model/cache --vocab={trained}/other-vocab",
        '{trained}/model/cache was built from something else (vocabulary was "d492d7b9fd13314... and is '
        '"18ced5c53f7cf78... now); delete it to build it anew, choose another folder, or name no text to use it '
        "as it is",
    ),
    "a cache of other text": Entry(
        "pretrain --gin_file={trained}/run.gin --model_dir=out --cache_dir={trained}/model/cache --input=a.txt "
        "--validation_input={trained}/text/held-out.txt",
        '{trained}/model/cache was built from something else (corpora.text.train[train.txt].name was "train.txt" '
        'and is "a.txt" now); delete it to build it anew, choose another folder, or name no text to use it as it '
        "is",
        {"a.txt": "One.\n\nTwo.\n"},
    ),
}

# Runs, checkpoints, models to start from, Hugging Face folders.
CHECKPOINTS = {
    "going on with BertConfig.hidden_size=32": Entry(
        "pretrain {run} --gin.BertConfig.hidden_size=32",
        "Run.objective.model.hidden_size was 16 when this run began and is 32 now; change it back, or use another --model_dir",
        {"model": Copy("{trained}/model")},
    ),
    "going on with LinearDecay.peak=1.0": Entry(
        "pretrain {run} --gin.LinearDecay.peak=1.0",
        "Run.optimizer.schedule.peak was 0.01 when this run began and is 1.0 now; change it back, or use another --model_dir",
        {"model": Copy("{trained}/model")},
    ),
    "going on with Run.optimizer=@Lamb()": Entry(
        "pretrain {run} --gin.Run.optimizer=@Lamb()",
        "Run.optimizer was AdamW when this run began and is Lamb now; change it back, or use another --model_dir",
        {"model": Copy("{trained}/model")},
    ),
    "going on with short/Stage.steps=3": Entry(
        "pretrain {run} --gin.short/Stage.steps=3",
        "Run.stages[0].steps was 12 when this run began and is 3 now; change it back, or use another --model_dir",
        {"model": Copy("{trained}/model")},
    ),
    "going on with another vocabulary": Entry(
        "pretrain {run} --vocab={trained}/other-vocab",
        "{trained}/other-vocab is not the vocabulary that model began with; leave it out, or use another --model_dir",
        {"model": Copy("{trained}/model")},
    ),
    "going on with other text": Entry(
        "pretrain {run} --input=a.txt",
        "model/cache was built from something else (corpora.text.train was 1 entries and is 2 entries now); "
        "delete it to build it anew, choose another folder, or name no text to use it as it is",
        {"model": Copy("{trained}/model"), "a.txt": "One.\n\nTwo.\n"},
    ),
    "going on without a fingerprint": Entry(
        "pretrain --model_dir=model",
        "model/fingerprint.json is missing, which says what text this run began with; put it back, or use another --model_dir",
        {"model": Copy("{trained}/model"), "model/fingerprint.json": None},
    ),
    "going on with a damaged fingerprint": Entry(
        "pretrain --model_dir=model",
        "model/fingerprint.json is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        {"model": Copy("{trained}/model"), "model/fingerprint.json": "{"},
    ),
    "going on without the configuration": Entry(
        "pretrain {run} ",
        "--model_dir=model holds NOTES and no run (no config.gin): name a new folder",
        {"model": Copy("{trained}/model"), "model/config.gin": None, "model/NOTES": ""},
    ),
    "no checkpoint is whole": Entry(
        "pretrain --model_dir=model",
        "no checkpoint in {here}/model/checkpoints is whole: 7 (digests.json is damaged); put a copy of one back, "
        "or use another --model_dir",
        {"model": Copy("{trained}/model"), "model/checkpoints": None, "model/checkpoints/7/digests.json": "{"},
    ),
    "an unfinished checkpoint alone": Entry(
        "fill --model_dir=model [MASK]",
        "no checkpoint in {here}/model/checkpoints is whole: 7 (no digests.json: it was never finished); put a "
        "copy of one back, or use another --model_dir",
        {"model": Copy("{trained}/model"), "model/checkpoints": None, "model/checkpoints/7/params": ""},
    ),
    "parts of nothing": Entry(
        "pretrain {run} --init_parts=encoder",
        "--init_parts says what is taken of --init_from; give that too, or leave it out",
    ),
    "a start from nothing": Entry(
        "pretrain {run} --init_from=nowhere",
        "nowhere is neither a model folder (config.gin) nor a Hugging Face folder (config.json)",
    ),
    "a start from an unknown part": Entry(
        "pretrain {run} --init_from={trained}/model --init_parts=encodr",
        "--init_parts=encodr: {trained}/model has no encodr; it has encoder, mlm_head, nsp_head, pooler",
    ),
    "a start from another size": Entry(
        "pretrain {run} --init_from={trained}/model --gin.BertConfig.feed_forward_size=64",
        "Run.objective.model.feed_forward_size was 32 in {trained}/model and is 64 now; change it back, or use "
        "another --init_from",
    ),
    "no run": Entry(
        "evaluate --model_dir=nowhere",
        "nowhere is no model folder (no config.gin); `bertfam pretrain` or `bertfam import` makes one",
    ),
    "no checkpoints": Entry(
        "evaluate --model_dir=model",
        "model has no checkpoints; train a model there with `bertfam pretrain --model_dir=model`",
        {"model": Copy("{trained}/model"), "model/checkpoints": None},
    ),
    "no cache": Entry(
        "evaluate --model_dir=model",
        "model/cache holds no token cache (no cache.json); build one with `bertfam cache`",
        {"model": Copy("{trained}/model"), "model/cache": None},
    ),
    "no such step": Entry(
        "evaluate --model_dir={trained}/model --step=7",
        "{trained}/model/checkpoints has no step 7; it has 5, 10, 15, 20, 24",
    ),
    "an update that a run does not have": Entry(
        "replay --model_dir={trained}/model --step=25",
        "--step=25 is no update of this run, which has 1 to 24",
    ),
    "a replay of no run": Entry(
        "replay --model_dir=nowhere --step=5",
        "nowhere is no model folder (no config.gin); `bertfam pretrain` or `bertfam import` makes one",
    ),
    "an update before all checkpoints": Entry(
        "replay --model_dir={trained}/model --step=5",
        "{trained}/model/checkpoints has no checkpoint before --step=5; it has 5, 10, 15, 20, 24",
    ),
    "an update before the checkpoint": Entry(
        "replay --model_dir={trained}/model --step=12 --checkpoint=15",
        "--checkpoint=15 is not before --step=12: give an earlier one",
    ),
    "a damaged checkpoint to replay from": Entry(
        "replay --model_dir=model --step=12 --checkpoint=7",
        "{here}/model/checkpoints/7 is damaged (digests.json is damaged); use another: 5, 10, 15, 20, 24",
        {"model": Copy("{trained}/model"), "model/checkpoints/7/digests.json": "{"},
    ),
    "a replay of no arrangement": Entry(
        "replay --model_dir={trained}/model --step=12 --times=0",
        "--times=0 is less than 1",
    ),
    "no average": Entry(
        "export --model_dir={trained}/model --output=out --average",
        "step 24 of {trained}/model has no moving average, which Run.average_decay keeps",
    ),
    "no batches": Entry(
        "evaluate --model_dir={trained}/model --batches=0",
        "--batches=0 is less than 1",
    ),
    "a vocabulary in the place of the own": Entry(
        "export --model_dir=model --output=out",
        "model/vocab is not the vocabulary that the model was trained with: put that back",
        {"model": Copy("{trained}/model"), "model/vocab": Copy("{trained}/other-vocab")},
    ),
    "a run without its vocabulary": Entry(
        "fill --model_dir=model [MASK]",
        "model/vocab is not a folder: a vocabulary is a folder with tokenizer.json, vocab.txt, spiece.model, or "
        "vocab.json and merges.txt in it",
        {"model": Copy("{trained}/model"), "model/vocab": None},
    ),
    "a run with a damaged configuration": Entry(
        "fill --model_dir=model [MASK]",
        "model/config.gin:1: Run has no parameter steps; did you mean stages?",
        {"model": Copy("{trained}/model"), "model/config.gin": "Run.steps = 3\n"},
    ),
    "no mask": Entry(
        "fill --model_dir={trained}/model 'No mask.'",
        "no [MASK] in 'No mask.'; write [MASK] where a token is to be filled in",
    ),
    "no candidates": Entry(
        "fill --model_dir={trained}/model --top_k=0 [MASK]",
        "--top_k=0 is less than 1",
    ),
    "a step of no copy": Entry(
        "checkpoints --model_dir={trained}/model --step=5",
        "--step says which checkpoint --copy_weights copies; give that too, or leave it out",
    ),
    "a copy of no step": Entry(
        "checkpoints --model_dir={trained}/model --copy_weights=out --step=7",
        "{trained}/model/checkpoints has no step 7; it has 5, 10, 15, 20, 24",
    ),
    "a copy without its vocabulary": Entry(
        "checkpoints --model_dir=model --copy_weights=out",
        "model has no vocab, which a copy needs: put it back",
        {"model": Copy("{trained}/model"), "model/vocab": None},
    ),
    "a copy as JSON": Entry(
        "checkpoints --model_dir={trained}/model --copy_weights=out --json",
        "--json goes with the list of checkpoints, not with --copy_weights",
    ),
    "a list of nothing": Entry(
        "checkpoints --model_dir=nowhere",
        "nowhere has no checkpoints; train a model there with `bertfam pretrain --model_dir=nowhere`",
    ),
    "a step beyond the run": Entry(
        "preview --model_dir={trained}/model --step=24",
        "--step=24 is beyond the run's 24 steps",
    ),
    "an import of nothing": Entry(
        "import --input=bert --output=out",
        "bert/config.json is missing: is bert a Hugging Face folder?",
    ),
    "an import without config": Entry(
        "import --input=bert --output=out",
        "bert/config.json is missing: is bert a Hugging Face folder?",
        {"bert/vocab.txt": "a\n"},
    ),
    "an import of a damaged config": Entry(
        "import --input=bert --output=out",
        "bert/config.json is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        {"bert": Copy("{hf}"), "bert/config.json": "{"},
    ),
    "an import of another architecture": Entry(
        "import --input=bert --output=out",
        "bert/config.json: model_type is 'llama', supported: bert, albert, bart, distilbert, electra, ernie, openai-gpt, gpt2, "
        "modernbert, mt5, opt, roberta, t5",
        {"bert": Copy("{hf}"), "bert/config.json": '{"model_type": "llama"}'},
    ),
    "an import of more layers": Entry(
        "import --input=bert --output=out",
        "bert lacks 16 of 62 tensors, such as bert.encoder.layer.2.attention.self.query.weight, which its config.json asks for",
        {"bert": Copy("{hf}"), "bert/config.json": Changed({"num_hidden_layers": 3})},
    ),
    "an import of another width": Entry(
        "import --input=bert --output=out",
        "bert: bert.encoder.layer.0.intermediate.dense.weight has shape (32, 16), and config.json asks for (64, 16)",
        {"bert": Copy("{hf}"), "bert/config.json": Changed({"intermediate_size": 64})},
    ),
    "an import of an unknown activation": Entry(
        "import --input=bert --output=out",
        "bert: config.json: hidden_act = 'mish' is not supported, only gelu, gelu_new, gelu_pytorch_tanh, relu, silu, swish",
        {"bert": Copy("{hf}"), "bert/config.json": Changed({"hidden_act": "mish"})},
    ),
    "an import of a string for a rate": Entry(
        "import --input=bert --output=out",
        "bert: config.json: hidden_dropout_prob = '0.1' must be of type float",
        {"bert": Copy("{hf}"), "bert/config.json": Changed({"hidden_dropout_prob": "0.1"})},
    ),
    "an import of relative positions": Entry(
        "import --input=bert --output=out",
        "bert: config.json: position_embedding_type = 'relative_key' is not supported, only 'absolute'",
        {"bert": Copy("{hf}"), "bert/config.json": Changed({"position_embedding_type": "relative_key"})},
    ),
    "an import without weights": Entry(
        "import --input=bert --output=out",
        "bert has no model.safetensors: fetch the weights too, as safetensors",
        {"bert": Copy("{hf}"), "bert/model.safetensors": None},
    ),
    "an import of a pickle": Entry(
        "import --input=bert --output=out",
        "bert has its weights only in pytorch_model.bin, a pickle, which can run any code when it is read: save "
        "it again as safetensors (in transformers: model.save_pretrained(DIR))",
        {"bert": Copy("{hf}"), "bert/model.safetensors": None, "bert/pytorch_model.bin": "x"},
    ),
    "an import of weights that are cut off": Entry(
        "import --input=bert --output=out",
        "bert/model.safetensors is no whole safetensors file (Error while deserializing header: header too "
        "small): fetch it again",
        {"bert": Copy("{hf}"), "bert/model.safetensors": b"@"},
    ),
    "an import of a damaged index": Entry(
        "import --input=bert --output=out",
        "bert/model.safetensors.index.json has no weight_map from tensors to files: fetch it again",
        {"bert": Copy("{hf}"), "bert/model.safetensors.index.json": "{}"},
    ),
    "an import without a missing shard": Entry(
        "import --input=bert --output=out",
        "bert/part-1.safetensors is missing: its folder is not complete",
        {"bert": Copy("{hf}"), "bert/model.safetensors.index.json": '{"weight_map": {"a": "part-1.safetensors"}}'},
    ),
    "an import without a tokenizer": Entry(
        "import --input=bert --output=out",
        "bert holds no vocabulary (tokenizer.json, vocab.txt, spiece.model, or vocab.json and merges.txt): make "
        "one with bertfam vocab",
        {"bert": Copy("{hf}"), "bert/tokenizer.json": None, "bert/vocab.txt": None},
    ),
    "an import of a run": Entry(
        "import --input={trained}/model --output=out",
        "{trained}/model/config.json is missing: is {trained}/model a Hugging Face folder?",
    ),
}

# Where something is to be written.
DISK = {
    "a model folder that is a file": Entry(
        "pretrain {run} --model_dir=a",
        "--model_dir=a is a file; name a folder",
        {"a": ""},
    ),
    "a model folder of something else": Entry(
        "pretrain {run} --model_dir=a",
        "--model_dir=a holds notes.txt and no run (no config.gin): name a new folder",
        {"a/notes.txt": ""},
    ),
    "a model folder below a file": Entry(
        "pretrain {run} --model_dir=a/model",
        "a/model cannot be written: {here}/a is no folder; name another",
        {"a": ""},
    ),
    "a cache below a file": Entry(
        "cache --output=a/cache --vocab={trained}/vocab --input={trained}/text/train.txt ",
        "a/cache cannot be written: {here}/a is no folder; name another",
        {"a": ""},
    ),
    "a cache in a folder of something else": Entry(
        "cache --output=a --vocab={trained}/vocab --input={trained}/text/train.txt ",
        "a exists already: name another folder, or remove it first",
        {"a/notes.txt": ""},
    ),
    "a vocabulary in a folder of something else": Entry(
        "vocab --overwrite --output=a --input={trained}/text/train.txt ",
        "--output=a holds notes.txt, which is no file of a vocabulary: name another folder",
        {"a/notes.txt": ""},
    ),
    "a vocabulary over another": Entry(
        "vocab --output={trained}/vocab --input={trained}/text/train.txt ",
        "--output={trained}/vocab is not empty (it holds special_tokens_map.json): name another, or give --overwrite",
    ),
    "a vocabulary that is a file": Entry(
        "vocab --output=a --input={trained}/text/train.txt ",
        "--output=a is a file: name a folder",
        {"a": ""},
    ),
    "an export over something": Entry(
        "export --model_dir={trained}/model --output=a",
        "a exists already: name another folder, or remove it first",
        {"a/notes.txt": ""},
    ),
    "an export below a file": Entry(
        "export --model_dir={trained}/model --output=a/out",
        "a/out cannot be written: {here}/a is no folder; name another",
        {"a": ""},
    ),
    "an import over something": Entry(
        "import --input={hf} --output=a",
        "a exists already: name another folder, or remove it first",
        {"a": ""},
    ),
    "a copy over something": Entry(
        "checkpoints --model_dir={trained}/model --copy_weights=a",
        "a exists already: name another folder, or remove it first",
        {"a": ""},
    ),
    "a page over another": Entry(
        "preview --model_dir={trained}/model --html=a.html",
        "--html=a.html exists already; name another file, or give --overwrite to replace it",
        {"a.html": ""},
    ),
    "a page that is a folder": Entry(
        "preview --model_dir={trained}/model --html=a",
        "--html=a is a folder; name a file in it",
        {"a/notes.txt": ""},
    ),
    "a page in no folder": Entry(
        "preview --model_dir={trained}/model --html=a/b.html",
        "--html=a/b.html: a is no folder; make it first, or name another",
    ),
    "checkpoints that are a file": Entry(
        "pretrain --model_dir=model",
        "{here}/model/checkpoints is a file; move it away, for a folder belongs there",
        {"model": Copy("{trained}/model"), "model/checkpoints": ""},
    ),
}

# Words of the command line.
FLAGS = {
    "no command": Entry(
        "",
        "no command given; one of clean, vocab, encode, cache, preview, check, plan, pretrain, distill, evaluate, fill, "
        "generate, checkpoints, replay, export, import",
    ),
    "a misspelt command": Entry(
        "pretrian {run}",
        "unknown command pretrian; did you mean pretrain?",
    ),
    "a flag before the command": Entry(
        "--json pretrain {run}",
        "unknown flag --json before the command; write bertfam COMMAND --json",
    ),
    "a misspelt flag": Entry(
        "evaluate --modle_dir=model",
        "bertfam evaluate has no flag --modle_dir; did you mean --model_dir?",
    ),
    "a word too many": Entry(
        "pretrain {run} more",
        "bertfam pretrain has no place for more; see bertfam pretrain --help",
    ),
    "a flag without its value": Entry(
        "evaluate --model_dir",
        "--model_dir needs a value: write --model_dir=VALUE (see bertfam evaluate --help)",
    ),
    "an empty value": Entry(
        "evaluate --model_dir=",
        "--model_dir=: the value is empty; give one",
    ),
    "a bucket": Entry(
        "evaluate --model_dir=s3://bucket/model",
        "--model_dir=s3://bucket/model: it is neither on this machine nor at gs://; copy it, or mount the bucket",
    ),
    "a missing flag": Entry(
        "export --model_dir=model",
        "the following arguments are required: --output (see bertfam export --help)",
    ),
    "no text to fill": Entry(
        "fill --model_dir={trained}/model",
        "the following arguments are required: TEXT (see bertfam fill --help)",
    ),
    "a word for a number": Entry(
        "preview --model_dir={trained}/model --examples=five",
        "--examples=five is no whole number",
    ),
    "a negative number": Entry(
        "preview --model_dir={trained}/model --step=-1",
        "--step=-1 is negative",
    ),
    "no rows": Entry(
        "preview --model_dir={trained}/model --examples=0",
        "--examples=0 is less than 1",
    ),
    "a misspelt choice": Entry(
        "cache --output=c --vocab={trained}/vocab --input=a.txt --input_format=line",
        "--input_format=line is no choice; did you mean lines?",
    ),
    "an unknown choice": Entry(
        "export --model_dir={trained}/model --output=out --dtype=int8",
        "--dtype=int8 is no choice; one of float32, bfloat16",
    ),
    "gin for a command without": Entry(
        "fill --model_dir={trained}/model [MASK] --gin.SEED=1",
        "bertfam fill reads no gin configuration; leave out --gin.SEED=1",
    ),
    "gin without a value": Entry(
        "pretrain {run} --gin.SEED",
        "--gin.SEED: write --gin.NAME=value, without spaces around the equals sign",
    ),
    "gin of nothing": Entry(
        "pretrain {run} --gin.SEED=",
        "--gin.SEED=: cannot be parsed: no value that can be read stands behind the equals sign",
    ),
    "two sources of text": Entry(
        "encode --vocab={trained}/vocab --input=a.txt One.",
        "TEXT and --input both say what to encode; give one of them",
    ),
    "a file to encode that is not there": Entry(
        "encode --vocab={trained}/vocab --input=a.txt",
        "a.txt cannot be read (No such file or directory)",
    ),
    "a file to encode in another encoding": Entry(
        "encode --vocab={trained}/vocab --input=a.txt",
        "a.txt:1 is not UTF-8; convert it first",
        {"a.txt": b"Caf\xe9\n"},
    ),
    "an unknown vocabulary to encode with": Entry(
        "encode --vocab=nowhere One.",
        "nowhere is not a folder: a vocabulary is a folder with tokenizer.json, vocab.txt, spiece.model, or "
        "vocab.json and merges.txt in it",
    ),
    "overwriting nothing": Entry(
        "preview --model_dir={trained}/model --overwrite",
        "--overwrite says what --html may replace: give --html=FILE with it",
    ),
    "processes below nothing": Entry(
        "cache --output=c --vocab={trained}/vocab --input={trained}/text/train.txt --processes=-1",
        "--processes=-1 is negative",
    ),
    "processes of Beam": Entry(
        "cache --output=c --vocab={trained}/vocab --input={trained}/text/train.txt --processes=2 --beam",
        "--processes does not go with --beam, whose runner decides how many there are; leave one out",
    ),
    "a vocabulary of no text": Entry(
        "vocab --output=v",
        "no text: give --input=GLOB for text files, or --task=python_docs for text that comes with Python",
    ),
    "a vocabulary too small": Entry(
        "vocab --output=v --size=5 --input={trained}/text/train.txt ",
        "--size=5 is too small: 5 special pieces and the characters of the text go in",
    ),
    "a vocabulary too large": Entry(
        "vocab --output=v --size=100000000000 --input={trained}/text/train.txt ",
        "--size=100000000000 is more than 10,000,000, the most pieces that are learnt",
    ),
    "an option of another kind": Entry(
        "vocab --output=v --kind=bpe --cased --input={trained}/text/train.txt ",
        "--cased is a flag of --kind=wordpiece: it does not go with --kind=bpe",
    ),
    "a layout without the unknown": Entry(
        "vocab --output=v --layout=gpt2 --input={trained}/text/train.txt ",
        "--layout=gpt2 has no token for unknown text, which only --kind=byte_bpe can do without",
    ),
    "pairs that never occur": Entry(
        "vocab --output=v --min_frequency=0 --input={trained}/text/train.txt ",
        "--min_frequency=0 must be at least 1 and below 2^31",
    ),
    "more than all characters": Entry(
        "vocab --output=v --kind=unigram --character_coverage=1.5 --input={trained}/text/train.txt ",
        "--character_coverage=1.5 must be above 0.5 and at most 1",
    ),
    "some flags of several processes": Entry(
        "pretrain {run} --num_processes=2",
        "--coordinator and --process_index missing: several processes need all of --coordinator, --num_processes, "
        "--process_index",
    ),
    "no address": Entry(
        "pretrain {run} --coordinator=localhost --num_processes=2 --process_index=0",
        "--coordinator=localhost is no address; write HOST:PORT, such as 10.0.0.1:8476",
    ),
    "no processes": Entry(
        "pretrain {run} --coordinator=localhost:8476 --num_processes=0 --process_index=0",
        "--num_processes=0 must be at least 1 and below 2^16",
    ),
    "a process too many": Entry(
        "pretrain {run} --coordinator=localhost:8476 --num_processes=2 --process_index=2",
        "--process_index=2 is not among the 2 processes 0 to 1",
    ),
    "no time to wait": Entry(
        "pretrain {run} --coordinator=localhost:8476 --num_processes=2 --process_index=0 --initialization_timeout=0",
        "--initialization_timeout=0 is not more than 0",
    ),
}

# Teachers and students.
TEACHING = {
    "no objective that distills": Entry(
        "distill {run} --teacher={trained}/model",
        "{trained}/run.gin does not distill: add --gin_file=objectives/distillation.gin, which makes "
        "@Distillation() the objective",
    ),
    "no teacher": Entry(
        "distill {distilled}", "Distillation has no teacher yet: name its folder with `bertfam distill --teacher=DIR`"
    ),
    "a teacher that is not there": Entry(
        "distill {distilled} --teacher=none",
        "none is neither a model folder (config.gin) nor a Hugging Face folder (config.json)",
    ),
    "a step without its teacher": Entry(
        "distill {distilled} --teacher_step=5", "--teacher_step says which of --teacher; give that too, or leave it out"
    ),
    "layers that are no numbers": Entry(
        "distill {distilled} --teacher={trained}/model --layers=all",
        "--layers=all: write numbers with commas between, as 0,2,4, or random",
    ),
    "a layer that the teacher lacks": Entry(
        "distill {distilled} --teacher={trained}/model --layers=0,2",
        "Distillation: layers (0, 2) names 2, and the teacher's layers are 0 to 1 (Distillation.layers from "
        "--layers=0,2, Distillation.teacher from --teacher={trained}/model)",
    ),
    "too few layers": Entry(
        "distill {distilled} --teacher={trained}/model --layers=0",
        "Distillation: layers (0,) are 1 of the teacher's, and the student has 2 layers (Distillation.layers "
        "from --layers=0, Distillation.teacher from --teacher={trained}/model)",
    ),
    "another vocabulary than the teacher's": Entry(
        "distill --gin_file={trained}/run.gin --gin_file=objectives/distillation.gin --teacher={trained}/model "
        "--input={trained}/text/train.txt --vocab={trained}/other-vocab --model_dir=model",
        "the vocabulary of the teacher {trained}/model is not this run's: a student has its teacher's; give "
        "text and --vocab={trained}/model/vocab, or a token cache that was built with it",
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
