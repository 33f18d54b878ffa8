"""What is left at the end: internal operators in standard form, names and constants in order."""

from normdeploy.rewrite.lower.clean import Clean
from normdeploy.rewrite.lower.gemm_over_rows import GemmsOverRows
from normdeploy.rewrite.lower.guard_outputs import GuardOutputs
from normdeploy.rewrite.lower.guard_pads import GuardPads
from normdeploy.rewrite.lower.one_concat import OneConcat
from normdeploy.rewrite.lower.one_view import OneView
from normdeploy.rewrite.lower.round_trips import RemoveRoundTrips
from normdeploy.rewrite.lower.whole_again import WholeAgain
from normdeploy.rewrite.lower.write_affine import LowerAffine
from normdeploy.rewrite.lower.write_rms_norm import LowerNorms
from normdeploy.rewrite.lower.zero_bias import DropZeroBiases

__all__ = [
    "Clean",
    "DropZeroBiases",
    "GemmsOverRows",
    "GuardOutputs",
    "GuardPads",
    "LowerAffine",
    "LowerNorms",
    "OneConcat",
    "OneView",
    "RemoveRoundTrips",
    "WholeAgain",
]
