"""Weight expressions: what depends on constants only is evaluated once, in float64, whatever its size."""

from normdeploy.rewrite.weights.evaluate_constants import EvaluateConstants
from normdeploy.rewrite.weights.follow_sizes import FollowSizes

__all__ = ["EvaluateConstants", "FollowSizes"]
