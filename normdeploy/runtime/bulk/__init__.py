"""Bulk prediction: sources of rows, parts that survive a kill, engines, joined results."""

from normdeploy.runtime.bulk.images import ImageOptions
from normdeploy.runtime.bulk.run import BulkResult, predict

__all__ = ["BulkResult", "ImageOptions", "predict"]
