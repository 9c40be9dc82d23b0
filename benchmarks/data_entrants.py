"""Entrants of the data benchmark and their work."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measurement import Entrant
from bertfam.data.corpora.formats import InputFormat

BERTFAM, DATASETS, SEQIO = "bertfam", "datasets", "seqio"
SEEK_STEP = 1_000_000


@dataclass(frozen=True)
class Inputs:
    """Inputs and settings of all entrants.

    Attributes:
      folder: temporary folder for everything that is written.
      files: text files.
      input_format: format of the files, one of `INPUT_FORMATS`.
      vocabulary: vocabulary folder with tokenizer.json.
      processes: number of processes of the parallel builds.
      batch_size: rows of a batch.
      seconds: duration of each measurement of a rate.
      peers: whether the peers run too.
    """

    folder: Path
    files: tuple[str, ...]
    input_format: InputFormat
    vocabulary: str
    processes: int
    batch_size: int
    seconds: float
    peers: bool

    @property
    def cache(self) -> str:
        """Folder of the token cache that rows are made from."""
        return str(self.folder / "cache")

    @property
    def tokenised(self) -> str:
        """Folder of the peer's tokenised dataset."""
        return str(self.folder / "tokenised")

    def builder(self, program: str, processes: int, output: str) -> Entrant:
        """Return the entrant that builds a token cache, or the peer's tokenised dataset."""
        arguments = {"files": self.files, "input_format": self.input_format, "vocabulary": self.vocabulary}
        return Entrant(
            program,
            f"{processes} process{'es' if processes > 1 else ''}",
            f"benchmarks.data_{'bertfam' if program == BERTFAM else 'huggingface'}:build",
            arguments | {"processes": processes, "output": output},
            cores=processes,
            peer=program == DATASETS,
        )


def build_entrants(inputs: Inputs) -> list[Entrant]:
    """Return the entrants that build a cache from text, in one process and in several."""
    counts = sorted({1, inputs.processes})
    return [inputs.builder(program, count, str(inputs.folder / "built")) for count in counts for program in (BERTFAM, DATASETS)]


def row_entrants(inputs: Inputs) -> list[Entrant]:
    """Return the entrants for noisy rows: pairs of 128 tokens, and running text of 128 and 512."""
    works = (
        ("pairs of 128", 128, ("sentence pairs",), "sentence_pairs"),
        ("text of 128", 128, ("full sentences", "concatenate and cut"), "blocks"),
        ("text of 512", 512, ("full sentences", "concatenate and cut"), "blocks"),
    )
    entrants = []
    for work, length, kinds, peer in works:
        entrants += [_rows(inputs, kind, length, work, noise=True) for kind in kinds]
        arguments = _common(inputs) | {"tokenised": inputs.tokenised, "vocabulary": inputs.vocabulary, "length": length}
        for tensors, name in (("np", "NumPy"), ("pt", "torch")):
            job = f"benchmarks.data_huggingface:{peer}"
            entrants.append(Entrant(f"{DATASETS}, {name}", work, job, arguments | {"tensors": tensors}, peer=True))
    return entrants


def packing_entrants(inputs: Inputs) -> list[Entrant]:
    """Return the entrants for rows of 512: packed, a document per row, and cut anywhere, without noise; and packed with noise."""
    arguments = _common(inputs) | {"cache": inputs.cache, "length": 512}
    job = "benchmarks.data_seqio:packed_documents"
    return [
        _rows(inputs, "packed documents", 512, "packed, no noise", noise=False),
        Entrant(f"{SEQIO}, packed documents", "packed, no noise", job, arguments, peer=True),
        _rows(inputs, "a document a row", 512, "not packed, no noise", noise=False),
        _rows(inputs, "concatenate and cut", 512, "not packed, no noise", noise=False),
        _rows(inputs, "packed documents", 512, "packed, masked", noise=True),
        _rows(inputs, "packed sentence pairs", 512, "packed, masked", noise=True),
    ]


def seek_entrants(inputs: Inputs) -> list[Entrant]:
    """Return the entrants that open a cache and make the batch of a distant step."""
    entrants = []
    for kind, length in (("full sentences", 128), ("sentence pairs", 128), ("packed documents", 512)):
        arguments = {"cache": inputs.cache, "kind": kind, "length": length, "batch_size": inputs.batch_size, "step": SEEK_STEP}
        work = {"full sentences": "text", "sentence pairs": "pairs"}.get(kind, kind)
        entrants.append(Entrant(BERTFAM, f"{work} of {length}", "benchmarks.data_bertfam:seek", arguments))
    arguments = {"blocks": f"{inputs.tokenised}_blocks", "vocabulary": inputs.vocabulary, "batch_size": inputs.batch_size}
    job = "benchmarks.data_huggingface:seek"
    return [entrants[0], Entrant(DATASETS, "text of 128", job, arguments | {"step": SEEK_STEP}, peer=True), *entrants[1:]]


def _rows(inputs: Inputs, kind: str, length: int, work: str, *, noise: bool) -> Entrant:
    arguments = _common(inputs) | {"cache": inputs.cache, "kind": kind, "length": length, "noise": noise}
    return Entrant(f"{BERTFAM}, {kind}", work, "benchmarks.data_bertfam:rows", arguments)


def _common(inputs: Inputs) -> dict[str, Any]:
    return {"batch_size": inputs.batch_size, "seconds": inputs.seconds}
