"""Building the token cache of a run in a child process, which gets only the settings of the text."""

import subprocess
import sys
from types import SimpleNamespace

from bertfam import config
from bertfam.data.token_cache import build_process

RUN = ["tasks/text.gin", "runs/quickstart.gin"]


def test_child_process_of_a_run_does_not_import_jax(tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"Document {number} has a line." for number in range(200)))
    vocabulary = tmp_path / "vocab"
    subprocess.run(
        [sys.executable, "-m", "bertfam", "vocab", f"--input={text}", "--size=100", f"--output={vocabulary}"],
        check=True,
        capture_output=True,
    )
    merged = config.load(
        RUN, ["TextData.corpus = @TextFiles()", f"TextFiles.train = ('{text}',)", f"TextData.vocabulary = '{vocabulary}'"]
    )
    imports = []

    def run(command, env, **options):
        command = [command[0], "-X", "importtime", *command[1:]]
        process = subprocess.run(command, env=env, stderr=subprocess.PIPE, text=True, **options)
        imports.extend(line.rpartition("|")[2].strip() for line in process.stderr.splitlines())
        return process

    monkeypatch.setattr(build_process, "subprocess", SimpleNamespace(run=run, DEVNULL=subprocess.DEVNULL))
    data = merged.build("TextData")
    cache = build_process.open_token_cache(merged, data, tmp_path / "cache", data)
    assert sum(cache.counts(split)["documents"] for split in ("train", "validation")) == 200
    assert "bertfam.data.text_data" in imports
    assert not {"jax", "tensorflow"} & set(imports)
