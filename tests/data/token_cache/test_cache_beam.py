"""Token caches, vocabularies and cleaned text made with Apache Beam, byte for byte equal to those made without it."""

import json
import shutil
import subprocess
import sys

import pytest

from bertfam import cli
from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.data.corpora.labelled.tagged_files import TaggedFiles
from bertfam.data.corpora.text_files import TextFiles
from bertfam.data.parallel import beam as parallel_beam
from bertfam.data.token_cache import beam, builder
from bertfam.data.token_cache.cache import TokenCache
from bertfam.errors import UserError


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def text(corpus, tmp_path_factory):
    """A folder of plain files, one of them empty, and of the same documents as JSON lines."""
    folder = tmp_path_factory.mktemp("text")
    documents = list(corpus.texts("train"))
    for number, group in enumerate([documents[:5], [], documents[5:6], documents[6:]]):
        (folder / f"{number}.txt").write_text("\n\n".join("\n".join(lines) for lines in group))
        records = [{"text": "\n".join(lines), "words": sum(len(line.split()) for line in lines)} for lines in group]
        for record in records:
            record["tokens"] = record["text"].split()[: record["words"] % 20 + 1]
            record["tags"] = [("even", "odd")[len(word) % 2] for word in record["tokens"]]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


CORPORA = {
    "held-out-by-hash": lambda text: {"text": TextFiles(f"{text}/*.txt", validation_fraction=0.2)},
    "two, one with held-out files": lambda text: {
        "lines": TextFiles(f"{text}/*.jsonl", input_format="jsonl", validation_fraction=0.2),
        "plain": TextFiles(f"{text}/[12].txt", (f"{text}/[03].txt",), input_format="paragraphs"),
    },
    "labelled": lambda text: {"text": LabelledFiles(f"{text}/*.jsonl", label="words", kind="number", validation_fraction=0.2)},
    "tagged": lambda text: {"text": TaggedFiles(f"{text}/*.jsonl", classes=("even", "odd"), validation_fraction=0.2)},
}


@pytest.mark.parametrize("name", CORPORA)
def test_beam_build_gives_the_same_bytes(tmp_path, text, vocabulary, name):
    corpora = CORPORA[name](text)
    built = beam.build(corpora, vocabulary, tmp_path / "beam")
    assert built.corpora == tuple(corpora)
    assert contents(built.directory) == contents(builder.build(corpora, vocabulary, tmp_path / "plain").directory)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beam", "plain"]


def test_corpus_without_parts_is_one_part(tmp_path, corpus, vocabulary, cache_dir):
    assert contents(beam.build({"text": corpus}, vocabulary, tmp_path / "beam").directory) == contents(cache_dir)


@pytest.mark.parametrize("name", ["held-out-by-hash", "tagged"])
def test_stopped_beam_build_resumes_without_repeating_work(tmp_path, text, vocabulary, monkeypatch, name):
    """Stop while parts are joined; a plain build can resume from the same folder."""
    corpora = CORPORA[name](text)
    whole = contents(builder.build(corpora, vocabulary, tmp_path / "plain").directory)

    class StopError(BaseException):
        pass

    append = beam.SplitWriter.append_files

    def stop_at(number):
        def append_or_stop(writer, folder, counts):
            if folder.name == number:
                raise StopError
            append(writer, folder, counts)

        return append_or_stop

    def refuse(*_):
        raise AssertionError("tokenised again")

    monkeypatch.setattr(beam.SplitWriter, "append_files", stop_at("train-000003"))
    with pytest.raises(StopError):
        beam.build(corpora, vocabulary, tmp_path / "beam")
    shutil.copytree(tmp_path / ".beam.partial", tmp_path / ".other.partial")
    monkeypatch.setattr(beam.SplitWriter, "append_files", append)
    monkeypatch.setattr(parallel_beam, "_write_part", refuse)
    assert contents(beam.build(corpora, vocabulary, tmp_path / "beam").directory) == whole
    assert contents(builder.build(corpora, vocabulary, tmp_path / "other").directory) == whole


def test_mistakes_are_reported_as_in_a_plain_build(tmp_path, text, vocabulary):
    (tmp_path / "bad.txt").write_bytes(b"one\n\xff\n")
    (tmp_path / "blank.txt").write_text("\n\n")
    blank, bad = TextFiles(f"{tmp_path}/blank.txt"), TextFiles((f"{text}/0.txt", f"{tmp_path}/bad.txt"))
    for corpus, message in ((bad, "bad.txt:2: not UTF-8 at byte offset 4"), (blank, "blank.txt: no document")):
        for build in (beam.build, builder.build):
            with pytest.raises(UserError, match=message):
                build({"text": corpus}, vocabulary, tmp_path / "new" / "cache")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.txt", "blank.txt"]


def test_missing_beam_is_reported_with_the_package_to_install(tmp_path, vocabulary, corpus, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(UserError, match=r"^Apache Beam cannot be imported \(.*\): pip install 'bertfam\[beam\]'$"):
        beam.build({"text": corpus}, vocabulary, tmp_path / "cache")


COMMANDS = {
    "clean": ("clean", "--input_format=jsonl", "--output={}.jsonl", "--report={}.json"),
    "vocab": ("vocab", "--input_format=jsonl", "--output={}", "--size=120", "--sample=0.7"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_other_commands_write_the_same_bytes_and_resume(tmp_path, text, name, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(output, *flags):
        words = [word.format(output) for word in COMMANDS[name]]
        assert cli.main([*words, f"--input={text}/*.jsonl", *flags]) == 0, capsys.readouterr().err

    run("plain")
    read_part = parallel_beam.read_part

    def stop(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(parallel_beam, "read_part", stop)
    with pytest.raises(AssertionError):
        run("beam", "--beam")
    assert len(list(tmp_path.glob(".beam*.partial/parts/**/part.json"))) == 4
    monkeypatch.setattr(parallel_beam, "read_part", read_part)
    monkeypatch.setattr(parallel_beam, "_write_part", None)  # all parts are there
    run("beam", "--beam=--runner=DirectRunner")
    made = {path.replace("beam", "plain"): content.replace(b"beam", b"plain") for path, content in contents(tmp_path).items()}
    assert len(made) * 2 == len(contents(tmp_path)) and made == {
        path: content for path, content in contents(tmp_path).items() if path.startswith("plain")
    }


def test_parts_beside_an_output_in_a_bucket_are_refused():
    with pytest.raises(UserError, match="--output=gs://bucket/vocab: "), parallel_beam.parts_folder("gs://bucket/vocab", {}):
        raise AssertionError("opened")


def test_cache_command_with_processes_of_the_beam_runner(tmp_path, text, vocabulary):
    vocabulary.save(tmp_path / "vocab")
    flags = {"input": text / "*.txt", "vocab": tmp_path / "vocab", "output": tmp_path / "cache"}
    options = "--direct_running_mode=multi_processing --direct_num_workers=2"
    words = [*(f"--{name}={value}" for name, value in flags.items()), f"--beam={options}"]
    process = subprocess.run([sys.executable, "-m", "bertfam", "cache", *words], capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (0, f"token cache: {tmp_path / 'cache'}\n"), process.stderr
    plain = builder.build({"text": TextFiles(f"{text}/*.txt")}, vocabulary, tmp_path / "plain")
    assert contents(TokenCache(tmp_path / "cache").directory) == contents(plain.directory)
