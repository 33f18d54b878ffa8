"""Normalizations to train with, in every convention people use, and what belongs to training them."""

from normdeploy.nn.batchnorm import BatchNorm
from normdeploy.nn.groupnorm import GroupNorm
from normdeploy.nn.layernorm import LayerNorm
from normdeploy.nn.moments import Moments
from normdeploy.nn.population import Recalibrated, recalibrate
from normdeploy.nn.rmsnorm import RMSNorm
from normdeploy.nn.sync import SyncBatchNorm, plain, synchronized

__all__ = [
    "BatchNorm",
    "GroupNorm",
    "LayerNorm",
    "Moments",
    "RMSNorm",
    "Recalibrated",
    "SyncBatchNorm",
    "plain",
    "recalibrate",
    "synchronized",
]
