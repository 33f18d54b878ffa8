"""Recognise statistics-computing norms by what they compute, and write each as one operator."""

from normdeploy.rewrite.recognise.hypothesis import Blocks, Norm
from normdeploy.rewrite.recognise.norms_pass import RecogniseNorms

__all__ = ["Blocks", "Norm", "RecogniseNorms"]
