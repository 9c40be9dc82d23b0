"""Small configurables, so that these tests use none of bertfam's own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import gin

from bertfam import config
from bertfam.errors import UserError


class Corpus(Protocol):
    def documents(self, split: str) -> list[str]: ...


@dataclass(frozen=True)
class ToyFiles:
    train: tuple[str, ...] = ()

    def documents(self, split: str) -> list[str]:
        return [split]


@dataclass(frozen=True)
class ToyModel:
    size: int
    heads: int = 2
    rate: float = 0.1
    layout: Literal["scan", "unroll"] = "scan"
    shape: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.size % self.heads:
            raise ValueError(f"size {self.size} is not a multiple of heads {self.heads}")
        if self.rate > 1:
            raise UserError(f"rate {self.rate} is above 1")
        if self.rate < 0:
            raise ArithmeticError("a fault, not a mistake")


@dataclass(frozen=True)
class ToyStage:
    steps: int = gin.REQUIRED  # type: ignore[assignment]
    length: int = 128


@dataclass(frozen=True)
class ToyRun:
    model: ToyModel
    stages: tuple[ToyStage, ...] = ()
    corpus: Corpus | None = None
    name: str = "toy"
    seed: int | None = None
    verbose: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)
    teacher: ToyModel | None = None
    make: Callable[..., Any] | None = None
    choices: Sequence[int] = ()


@dataclass(frozen=True)
class ToyLoop:
    inner: Any = None


for toy in (ToyFiles, ToyModel, ToyStage, ToyRun, ToyLoop):
    config.register(toy)
