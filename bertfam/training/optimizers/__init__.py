"""Optimizers: frozen configs that build optax transformations."""

from bertfam.training.optimizers.adafactor import Adafactor
from bertfam.training.optimizers.adam import AdamW, BertAdam
from bertfam.training.optimizers.base import Optimizer
from bertfam.training.optimizers.lamb import Lamb
from bertfam.training.optimizers.lion import Lion
from bertfam.training.optimizers.muon import Muon
from bertfam.training.optimizers.sparsity import Sparsity
from bertfam.training.optimizers.stable_adamw import StableAdamW

__all__ = ["Adafactor", "AdamW", "BertAdam", "Lamb", "Lion", "Muon", "Optimizer", "Sparsity", "StableAdamW"]
