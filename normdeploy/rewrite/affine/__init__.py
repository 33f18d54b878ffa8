"""Affine maps: recognised in any spelling, as one operator; :mod:`normdeploy.rewrite.gauge` removes them."""

from normdeploy.rewrite.affine.affine_map import AffineMap
from normdeploy.rewrite.affine.affine_node import (
    Origin,
    affine_map,
    is_affine,
    new_affine,
    origins_of,
    reason_of,
    settle,
)
from normdeploy.rewrite.affine.find_affine import RecogniseAffine
from normdeploy.rewrite.affine.row_norm import NormTables

__all__ = [
    "AffineMap",
    "NormTables",
    "Origin",
    "RecogniseAffine",
    "affine_map",
    "is_affine",
    "new_affine",
    "origins_of",
    "reason_of",
    "settle",
]
