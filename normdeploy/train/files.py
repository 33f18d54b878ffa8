"""Data of one's own from files: CSV and Parquet with a target column, IDX, .npz; images in folders by class.

What a recipe's ``[data] files`` names. Tables and arrays are held in memory; images are decoded when they are needed
(`normdeploy.train.image_folder`).
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from normdeploy.errors import InputError
from normdeploy.files import NUMPY_FILE_ERRORS, storage
from normdeploy.train.data import Split, Splits, Standardization, split_rows

Array = npt.NDArray[Any]
_IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
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
    if what.files.is_dir():
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
    if not path.is_file():
        raise InputError(
            f"{path} does not exist; expected a folder of images by class, or a .csv, .parquet, .npz or IDX file: "
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
    except (pa.ArrowException, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}; expected a whole table: write it again") from error
    names = table.column_names
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
        columns.append(column.to_numpy().astype(np.float32))
    labels = table[target].to_pylist()
    if None in labels:
        raise InputError(
            f"column {target!r} of {path} has empty cells; expected a class in every row: remove those rows"
        )
    return np.stack(columns, axis=1), labels


def _npz(path: Path, what: FileData) -> tuple[Array, list[Any]]:
    try:
        with np.load(path, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
    except NUMPY_FILE_ERRORS as error:
        raise InputError(f"{path} cannot be read: {error}; expected arrays of numbers from numpy.savez") from error
    target = what.target or next((name for name in _TARGETS if name in arrays), "")
    inputs = list(what.columns) or [name for name in arrays if name != target]
    if target not in arrays or len(inputs) != 1 or inputs[0] not in arrays:
        raise InputError(
            f"{path} holds {', '.join(arrays) or 'nothing'}; expected one array of inputs and one of targets: name "
            "them as columns and target under [data]"
        )
    x, labels = arrays[inputs[0]], arrays[target]
    if len(x) != len(labels) or labels.ndim != 1:
        raise InputError(
            f"{path} holds {inputs[0]} {list(x.shape)} and {target} {list(labels.shape)}; expected one target for "
            "each sample: write the arrays again"
        )
    scaled = x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x.astype(np.float32)
    return scaled, labels.tolist()


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
    return (x.astype(np.float32) / np.float32(255))[:, None], y.tolist()


def read_idx(path: Path) -> Array:
    """Read an IDX file, as MNIST comes in, gzipped or not.

    Raises:
        InputError: it is no IDX file, or cut short.

    Source:
        Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits.
    """
    with storage(path, "read"):
        content = path.read_bytes()
    try:
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        kind, rank = content[2], content[3]
        shape = np.frombuffer(content, ">u4", rank, 4)
        values = np.frombuffer(content, _IDX_TYPES[kind], -1, 4 + 4 * rank)
        if content[:2] != b"\0\0" or rank == 0:
            raise ValueError("its magic number is another")
        return values.reshape(tuple(int(size) for size in shape))
    except (OSError, EOFError, IndexError, KeyError, ValueError) as error:
        raise InputError(f"{path} is no whole IDX file: {error}; expected one as MNIST has: fetch it again") from error
