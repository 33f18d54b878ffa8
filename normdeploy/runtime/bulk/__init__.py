"""Bulk prediction: sources of rows, parts that survive a kill, engines, joined results."""

from normdeploy.runtime.bulk.image_source import ImageOptions
from normdeploy.runtime.bulk.predict_files import BulkResult, predict

__all__ = ["BulkResult", "ImageOptions", "predict"]
