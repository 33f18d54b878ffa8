"""Two ONNX files side by side: their operators, their weights, their outputs on the same inputs.

No verdict: `normdeploy.api.verify` proves two files equal or not. This says how they differ.
"""

from normdeploy.compare.compare_files import diff
from normdeploy.compare.difference import Difference, OutputDifference, WeightDifference
from normdeploy.compare.ulps import ulps_between

__all__ = ["Difference", "OutputDifference", "WeightDifference", "diff", "ulps_between"]
