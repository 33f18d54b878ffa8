"""Join the parts of a finished run into one file, holding one part in memory at a time."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from normdeploy.errors import InputError, MissingDependencyError, UsageError
from normdeploy.files import written_whole
from normdeploy.runtime.backend import Array, TensorSpec
from normdeploy.runtime.bulk.journal import part_path
from normdeploy.runtime.bulk.work import OUTPUT

FORMATS = (".npy", ".npz", ".csv", ".parquet")
_BAD_COLUMNS = ("row", "key", "reason")


def check_format(out: Path, outputs: Sequence[TensorSpec]) -> None:
    """Refuse before the work starts an output path that the results cannot be written to.

    Raises:
        UsageError: an unknown ending, or .npy for several outputs or for whole numbers (bad rows are marked as NaN).
        MissingDependencyError: .parquet without pyarrow.
    """
    if out.suffix not in FORMATS:
        raise UsageError(f"{out} ends in {out.suffix!r}; expected one of {', '.join(FORMATS)}")
    if out.suffix == ".npy" and len(outputs) > 1:
        raise UsageError(
            f"{out} holds one array and the model has {len(outputs)} outputs; expected .npz, .csv or .parquet"
        )
    if out.suffix == ".npy" and not outputs[0].dtype.startswith("float"):
        raise UsageError(
            f"output {outputs[0]} cannot mark bad rows as NaN in {out.name}; expected .npz, .csv or .parquet"
        )
    if out.suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401 - asked for before the work instead of after it
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"{out.name} needs pyarrow, which is not installed; expected it: pip install pyarrow, or write .csv"
            ) from error


class Results:
    """The parts of a finished run, in order.

    Args:
        folder: where they lie.
        indexes: the parts' numbers.
        rows: rows of the data, bad ones included.
        named: whether rows have names.
    """

    def __init__(self, folder: Path, indexes: Sequence[int], rows: int, *, named: bool) -> None:
        self._folder, self._indexes, self.rows, self.named = folder, sorted(indexes), rows, named

    def parts(self) -> Iterator[dict[str, Array]]:
        """Yield each part's arrays."""
        for index in self._indexes:
            with np.load(part_path(self._folder, index), allow_pickle=False) as part:
                yield {name: part[name] for name in part.files}

    def layout(self) -> tuple[int, int, dict[str, tuple[tuple[int, ...], np.dtype[Any]]]]:
        """Return the number of good rows, the longest row name, and each output's row shape and dtype.

        Raises:
            InputError: an output's rows differ in shape between parts.
        """
        good, longest = 0, 1
        shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        for part in self.parts():
            good += len(part["row"])
            longest = max([longest, *map(len, part["key"])])
            for key, value in part.items():
                if not key.startswith(OUTPUT):
                    continue
                name, found = key.removeprefix(OUTPUT), (value.shape[1:], value.dtype)
                if shapes.setdefault(name, found) != found:
                    raise InputError(
                        f"output {name!r} has rows of shape {list(found[0])} and {list(shapes[name][0])}; "
                        "expected one shape for all rows: predict samples of one size at a time"
                    )
        return good, longest, shapes


def write_results(results: Results, out: Path, *, overwrite: bool) -> None:
    """Write ``out`` in the format its ending names, whole or not at all."""
    writer: dict[str, Callable[[Results, IO[bytes]], None]] = {
        ".npy": _write_npy,
        ".npz": _write_npz,
        ".csv": _write_csv,
        ".parquet": _write_parquet,
    }
    with written_whole(out, overwrite=overwrite) as temporary, temporary.open("wb") as stream:
        writer[out.suffix](results, stream)


def write_bad_rows(results: Results, path: Path) -> None:
    """Write the bad rows as CSV: row, key, reason."""
    with written_whole(path, overwrite=True) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(_BAD_COLUMNS)
        for part in results.parts():
            writer.writerows(zip(part["bad_row"].tolist(), part["bad_key"], part["bad_reason"], strict=True))


def _array_header(stream: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(stream, header)


def _write_npy(results: Results, stream: IO[bytes]) -> None:
    """One row per row of the data; bad rows are NaN."""
    _, _, shapes = results.layout()
    ((name, (shape, dtype)),) = shapes.items()
    _array_header(stream, (results.rows, *shape), dtype)
    for part in results.parts():
        count = len(part["row"]) + len(part["bad_row"])
        first = int(min([*part["row"][:1], *part["bad_row"][:1]]))
        block = np.full((count, *shape), np.nan, dtype)
        if OUTPUT + name in part:
            block[part["row"] - first] = part[OUTPUT + name]
        stream.write(block.tobytes())


def _write_npz(results: Results, stream: IO[bytes]) -> None:
    """The good rows of every output, their indexes as ``row``, their names as ``key`` where they have some."""
    good, longest, shapes = results.layout()
    columns: dict[str, tuple[str, tuple[int, ...], np.dtype[Any]]] = {"row": ("row", (), np.dtype(np.int64))}
    if results.named:
        columns["key"] = ("key", (), np.dtype(f"<U{longest}"))
    for name, (shape, dtype) in shapes.items():
        columns[f"output.{name}" if name in columns else name] = (OUTPUT + name, shape, dtype)
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for member, (key, shape, dtype) in columns.items():
            with archive.open(f"{member}.npy", "w", force_zip64=True) as entry:
                _array_header(entry, (good, *shape), dtype)
                for part in results.parts():
                    if key in part:
                        entry.write(np.ascontiguousarray(part[key].astype(dtype)).tobytes())


def _flat_names(name: str, shape: tuple[int, ...]) -> list[str]:
    return [name] if not shape else [f"{name}.{position}" for position in range(int(np.prod(shape)))]


def _write_csv(results: Results, stream: IO[bytes]) -> None:
    """A column ``row``, a column ``key`` for named rows, and one per value; numbers read back to the same value."""
    _, _, shapes = results.layout()
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    try:
        writer = csv.writer(text)
        names = [label for name, (shape, _) in shapes.items() for label in _flat_names(name, shape)]
        writer.writerow(["row", *(["key"] if results.named else []), *names])
        for part in results.parts():
            count = len(part["row"])
            columns: list[Any] = [part["row"].astype(str)[:, None]]
            if results.named:
                columns.append(part["key"][:, None])
            columns += [part[OUTPUT + name].reshape(count, -1).astype(str) for name in shapes if OUTPUT + name in part]
            if count:
                writer.writerows(np.concatenate(columns, axis=1).tolist())
    finally:
        text.detach()  # flushes; the stream belongs to the caller


def _write_parquet(results: Results, stream: IO[bytes]) -> None:
    """A column ``row``, a column ``key`` for named rows, and one per output: numbers, or flat lists of a fixed size."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    _, _, shapes = results.layout()
    fields = [pa.field("row", pa.int64())] + ([pa.field("key", pa.string())] if results.named else [])
    for name, (shape, dtype) in shapes.items():
        value = pa.from_numpy_dtype(dtype)
        fields.append(pa.field(name, pa.list_(value, int(np.prod(shape))) if shape else value))
    schema = pa.schema(fields)
    with pq.ParquetWriter(stream, schema) as writer:
        for part in results.parts():
            if not len(part["row"]):
                continue
            columns = [pa.array(part["row"])] + ([pa.array(part["key"].tolist())] if results.named else [])
            for name, (shape, _) in shapes.items():
                flat = pa.array(part[OUTPUT + name].reshape(-1))
                columns.append(pa.FixedSizeListArray.from_arrays(flat, int(np.prod(shape))) if shape else flat)
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
