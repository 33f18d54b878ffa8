"""Parallel and serial linear branches become one operator; exact openings around borders and dead biases.

:class:`MergeBranches` runs between two rounds of moving affine maps: it takes in the affine branches that no linear
operator of their own could absorb (the identity branch of a RepVGG), and what it merges may absorb maps again.
"""

from normdeploy.rewrite.branches.border_write import MovePads
from normdeploy.rewrite.branches.branches_pass import MergeBranches

__all__ = ["MergeBranches", "MovePads"]
