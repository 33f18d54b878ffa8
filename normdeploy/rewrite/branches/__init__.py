"""Parallel and serial linear branches become one operator; exact openings around borders and dead biases.

:class:`MergeBranches` runs between two rounds of moving affine maps: it takes in the affine branches that no linear
operator of their own could absorb (the identity branch of a RepVGG), and what it merges may absorb maps again.
:class:`AddMaps` runs in front of both: branches that are nothing but affine maps of one value are one.
"""

from normdeploy.rewrite.branches.border_write import MovePads
from normdeploy.rewrite.branches.branches_pass import MergeBranches
from normdeploy.rewrite.branches.sum_of_maps import AddMaps

__all__ = ["AddMaps", "MergeBranches", "MovePads"]
