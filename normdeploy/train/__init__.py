"""Training: one loop for CPU, one GPU and many processes."""

from normdeploy.nn.weight_files import read_metadata
from normdeploy.parsing.recipe import TrainSection, train_settings
from normdeploy.train.data import FileSplit, Split, Splits, Standardization, batches, split_rows
from normdeploy.train.data_files import FileData, read_files
from normdeploy.train.from_recipe import train
from normdeploy.train.history import Epoch, History
from normdeploy.train.loop import TrainResult, fit
from normdeploy.train.score import Score, loss_of, score
from normdeploy.train.trained_weights import load_weights, save_weights

__all__ = [
    "Epoch",
    "FileData",
    "FileSplit",
    "History",
    "Score",
    "Split",
    "Splits",
    "Standardization",
    "TrainResult",
    "TrainSection",
    "batches",
    "fit",
    "load_weights",
    "loss_of",
    "read_files",
    "read_metadata",
    "save_weights",
    "score",
    "split_rows",
    "train",
    "train_settings",
]
