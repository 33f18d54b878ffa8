"""Data of one's own from files: CSV and Parquet with a target column, IDX, .npz; images in folders by class.

What a recipe's ``[data] files`` names. Tables and arrays are held in memory; images are decoded when they are needed
(`normdeploy.train.image_folder`).
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from normdeploy.array_types import Array
from normdeploy.damaged_files import NUMPY_FILE_ERRORS, arrays_in, numpy_says
from normdeploy.errors import InputError
from normdeploy.files import lies_at, not_a_file, open_regular, storage
from normdeploy.train.data import Split, Splits, Standardization, split_rows

_IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_DEFLATE = 1032  # no byte of a .gz file becomes more bytes (zlib's own documentation)
_TARGETS = ("y", "target", "targets", "label", "labels", "class")


@dataclass(frozen=True)
class FileData:
    """How files are read.

    Args:
        files: a folder of images by class, .csv, .parquet, .npz, or an IDX file of images (a name with "images-idx3").
        test: the same for the test split; None takes a fifth of ``files``.
        target: column or array of the targets; by default the last column, or the array called y, target or labels.
        columns: input columns; by default all others, in their order.
        size: (height, width) of images; None takes the first one's.
        grey: read images as grey.
        standardize: subtract the training split's mean and divide by its deviation: per column, per channel of images.
        workers: processes that decode images.
        seed: of the shuffle that splits.
    """

    files: Path
    test: Path | None = None
    target: str | None = None
    columns: tuple[str, ...] = ()
    size: tuple[int, int] | None = None
    grey: bool = False
    standardize: bool = True
    workers: int = 0
    seed: int = 0

    def rows(self, count: int) -> list[Tensor]:
        """Return shuffled numbers of the training, validation and (without files of their own) test samples."""
        if self.test is None:
            return list(split_rows(count, seed=self.seed))
        return list(split_rows(count, test=0.0, seed=self.seed)[:2])


def read_files(what: FileData) -> Splits:
    """Read data of one's own.

    Returns:
        Splits: inputs as float32, images as (N, C, H, W) in [0, 1] before they are standardized; targets as class
        numbers in the sorted order of the classes' names.

    Raises:
        InputError: a file is missing, damaged or of an unknown kind, or what is in it does not fit together.

    >>> import numpy as np
    >>> np.savez("flowers.npz", x=np.random.rand(20, 3), y=np.arange(20) % 2)
    >>> splits = read_files(FileData(Path("flowers.npz")))
    >>> len(splits.train.targets), len(splits.valid.targets), len(splits.test.targets)
    (13, 3, 4)
    """
    with storage(what.files, "read"):
        folder = what.files.is_dir()
    if folder:
        from normdeploy.train.image_folder import read_images

        return read_images(what)
    inputs, labels = _arrays(what.files, what)
    classes = sorted(set(labels), key=_order)
    parts = [(inputs[rows.numpy()], [labels[row] for row in rows.tolist()]) for rows in what.rows(len(labels))]
    if what.test is not None:
        parts.append(_arrays(what.test, what))
    numbers = {name: number for number, name in enumerate(classes)}
    tensors = [(torch.from_numpy(x), torch.tensor([_class(y, numbers, what) for y in ys])) for x, ys in parts]
    found = _standardization(tensors[0][0]) if what.standardize else None
    splits = [Split(x if found is None else found.standardized(x), y) for x, y in tensors]
    return Splits(splits[0], splits[1], splits[2], class_names=tuple(map(str, classes)), standardization=found)


def _order(label: Any) -> tuple[int, Any]:
    return (0, label) if isinstance(label, (int, float)) else (1, str(label))


def _class(label: Any, numbers: dict[Any, int], what: FileData) -> int:
    if label not in numbers:
        raise InputError(
            f"{what.test} has the class {label!r}, which {what.files} has not; expected classes of the training data: "
            "remove those samples, or add some to the training data"
        )
    return numbers[label]


def _standardization(x: Tensor) -> Standardization:
    """Return mean and deviation of the training inputs: per channel of images, per column of anything else."""
    axes = (0, 2, 3) if x.dim() == 4 else (0,)
    wide = x.double()
    deviation, mean = torch.std_mean(wide, dim=axes, correction=0, keepdim=True)
    deviation = torch.where(deviation > 0, deviation, 1.0)  # a column that never changes says nothing: leave it
    return Standardization(mean.float(), deviation.float())


def _arrays(path: Path, what: FileData) -> tuple[Array, list[Any]]:
    """Return inputs (N, ...) as float32 and N targets."""
    if not lies_at(path):
        raise InputError(
            f"{path} {not_a_file(path)}; expected a folder of images by class, or a .csv, .parquet, .npz or IDX file: "
            "correct [data] files"
        )
    if "idx" in path.name:
        return _idx_pair(path)
    if path.suffix == ".npz":
        return _npz(path, what)
    if path.suffix in (".csv", ".parquet"):
        return _table(path, what)
    raise InputError(
        f"{path} is of no kind that is known; expected a folder of images by class, .csv, .parquet, .npz or IDX "
        "(train-images-idx3-ubyte): convert it"
    )


def _table(path: Path, what: FileData) -> tuple[Array, list[Any]]:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    try:
        table = pyarrow.csv.read_csv(path) if path.suffix == ".csv" else pyarrow.parquet.read_table(path)
        names = table.column_names  # decoded now: they may be no text
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read: {error}; expected a whole table: write it again") from error
    if len(names) < 2 or not table.num_rows:
        raise InputError(
            f"{path} has {len(names)} columns and {table.num_rows} rows; expected columns of inputs, one of targets, "
            "and rows: correct the file"
        )
    target = what.target or names[-1]
    wanted = list(what.columns) or [name for name in names if name != target]
    for name in (target, *wanted):
        if names.count(name) != 1:
            raise InputError(
                f"{path} has {names.count(name)} columns called {name!r}; expected one, of {', '.join(names)}: correct "
                "target and columns under [data]"
            )
    columns = []
    for name in wanted:
        column = table[name]
        if column.null_count or not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            why = f"{column.null_count} empty cells" if column.null_count else f"values of type {column.type}"
            raise InputError(
                f"column {name!r} of {path} has {why}; expected numbers in every row: fill them, or name the "
                "columns to use as columns under [data]"
            )
        columns.append(_single(column.to_numpy(), f"column {name!r} of {path}"))
    if pa.types.is_nested(table[target].type):
        raise InputError(
            f"column {target!r} of {path} has values of type {table[target].type}; expected one class in a row: name "
            "another as target under [data]"
        )
    try:
        labels = table[target].to_pylist()
    except ValueError as error:
        raise InputError(
            f"column {target!r} of {path} cannot be read: {error}; expected text in UTF-8: write it again"
        ) from error
    if None in labels:
        raise InputError(
            f"column {target!r} of {path} has empty cells; expected a class in every row: remove those rows"
        )
    return np.stack(columns, axis=1), labels


def _npz(path: Path, what: FileData) -> tuple[Array, list[Any]]:
    try:
        with np.load(path, allow_pickle=False) as held:
            arrays = arrays_in(held)
    except NUMPY_FILE_ERRORS as error:
        said = numpy_says(path, error)
        raise InputError(f"{path} cannot be read: {said}; expected arrays of numbers from numpy.savez") from error
    target = what.target or next((name for name in _TARGETS if name in arrays), "")
    inputs = list(what.columns) or [name for name in arrays if name != target]
    if target not in arrays or len(inputs) != 1 or inputs[0] not in arrays:
        raise InputError(
            f"{path} holds {', '.join(arrays) or 'nothing'}; expected one array of inputs and one of targets: name "
            "them as columns and target under [data]"
        )
    x, labels = arrays[inputs[0]], arrays[target]
    if x.dtype.kind not in "biuf" or labels.dtype.kind not in "biufSU":
        raise InputError(
            f"{path} holds {inputs[0]} of type {x.dtype} and {target} of type {labels.dtype}; expected numbers, and "
            "numbers or words: write the arrays again"
        )
    if x.ndim == 0 or labels.ndim != 1 or len(x) != len(labels):
        raise InputError(
            f"{path} holds {inputs[0]} {list(x.shape)} and {target} {list(labels.shape)}; expected one target for "
            "each sample: write the arrays again"
        )
    single = _single(x, f"{inputs[0]} of {path}")
    return single / np.float32(255) if x.dtype == np.uint8 else single, labels.tolist()


def _single(values: Array, what: str) -> Array:
    """Return values as float32, which must hold their size.

    Raises:
        InputError: a finite one would become infinite.
    """
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    if (lost := np.isinf(single) & np.isfinite(values)).any():
        raise InputError(
            f"{what} holds {values[lost][0]}; expected numbers up to 3.4e38, which float32 holds: scale them"
        )
    return single


def _idx_pair(path: Path) -> tuple[Array, list[Any]]:
    """Read IDX images, (N, 1, H, W) in [0, 1], and the labels beside them."""
    labels = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    if labels == path or not labels.is_file():
        raise InputError(f"{labels} does not exist; expected the labels of {path.name} beside it: put them there")
    x, y = read_idx(path), read_idx(labels)
    if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
        raise InputError(
            f"{path} holds {list(x.shape)} and {labels.name} {list(y.shape)}; expected images [N, H, W] and N labels"
        )
    return (_single(x, str(path)) / np.float32(255))[:, None], y.tolist()


def read_idx(path: Path) -> Array:
    """Read an IDX file, as MNIST comes in, gzipped or not.

    Raises:
        InputError: it is no IDX file, or cut short.

    Source:
        Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits.
    """
    with storage(path, "read"), open_regular(path) as file:
        most = os.fstat(file.fileno()).st_size
        try:
            if path.suffix == ".gz":
                return _idx(gzip.GzipFile(fileobj=file), most * _DEFLATE)
            return _idx(file, most)
        except (gzip.BadGzipFile, zlib.error, EOFError, IndexError, KeyError, ValueError) as error:
            raise InputError(
                f"{path} is no whole IDX file: {error}; expected one as MNIST has: fetch it again"
            ) from error


def _idx(stream: BinaryIO | gzip.GzipFile, most: int) -> Array:
    """Read an IDX file; no more is read than it declares, and nothing where that is more than ``most`` bytes."""
    magic = stream.read(4)
    kind, rank = np.dtype(_IDX_TYPES[magic[2]]), magic[3]
    if magic[:2] != b"\0\0" or rank == 0:
        raise ValueError("its magic number is another")
    shape = tuple(int(size) for size in np.frombuffer(stream.read(4 * rank), ">u4", rank))
    declared = math.prod(shape) * kind.itemsize
    if declared > most:
        raise ValueError(f"it declares {declared} bytes of values and is too short for them")
    content = stream.read(declared + 1)
    if len(content) != declared:
        raise ValueError(
            f"it declares {declared} bytes of values and holds {'more' if len(content) > declared else len(content)}"
        )
    return np.frombuffer(content, kind).reshape(shape)
