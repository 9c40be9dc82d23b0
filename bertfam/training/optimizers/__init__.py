"""Optimizers: frozen configs that build optax transformations."""

from bertfam.training.optimizers.adafactor import Adafactor
from bertfam.training.optimizers.adam import AdamW, BertAdam
from bertfam.training.optimizers.base import Optimizer
from bertfam.training.optimizers.lamb import Lamb
from bertfam.training.optimizers.lion import Lion
from bertfam.training.optimizers.muon import Muon

__all__ = ["Adafactor", "AdamW", "BertAdam", "Lamb", "Lion", "Muon", "Optimizer"]
