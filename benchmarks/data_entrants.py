"""Who takes part in the data benchmark, and with what work."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measuring import Entrant
from bertfam.data.corpora.formats import InputFormat

BERTFAM, DATASETS, SEQIO = "bertfam", "datasets", "seqio"
SEEK_STEP = 1_000_000


@dataclass(frozen=True)
class Inputs:
    """What all work is done on.

    Attributes:
      folder: a temporary one, for everything that is written.
      files: of text.
      input_format: one of `INPUT_FORMATS`.
      vocabulary: a folder with tokenizer.json.
      processes: of the parallel builds.
      batch_size: rows.
      seconds: that a rate is measured for.
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
        """The token cache that rows are made from."""
        return str(self.folder / "cache")

    @property
    def tokenised(self) -> str:
        """The peer's tokenised dataset."""
        return str(self.folder / "tokenised")

    def builder(self, program: str, processes: int, output: str) -> Entrant:
        """Text to a cache, or to the peer's."""
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
    """Text to cache, in one process and in several."""
    counts = sorted({1, inputs.processes})
    return [inputs.builder(program, count, str(inputs.folder / "built")) for count in counts for program in (BERTFAM, DATASETS)]


def row_entrants(inputs: Inputs) -> list[Entrant]:
    """Pairs of 128, and running text of 128 and 512, with their noise."""
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
    """Rows of 512 without noise, packed, a document a row and cut anywhere, and packed ones with noise."""
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
    """From nothing opened to the batch of a far step."""
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
