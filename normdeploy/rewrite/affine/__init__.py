"""Affine maps: recognised in any spelling, moved through the graph, absorbed by linear operators.

:mod:`.table` is the table of contents: one row per operator.
"""

from normdeploy.rewrite.affine.map import AffineMap
from normdeploy.rewrite.affine.move import MoveAffine
from normdeploy.rewrite.affine.node import Origin, affine_map, is_affine, new_affine, origins_of, reason_of, settle
from normdeploy.rewrite.affine.recognise import RecogniseAffine
from normdeploy.rewrite.affine.row_norm import NormTables

__all__ = [
    "AffineMap",
    "MoveAffine",
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
