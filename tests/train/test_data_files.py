"""Data of one's own: what is in the files arrives, split and standardized, and trains, exports and is proven."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from torch import nn

from normdeploy.building import quantize_step
from normdeploy.building.recipe_build import build
from normdeploy.errors import InputError, RecipeError, SourceError
from normdeploy.ort.byte_products import EXACT_PRODUCTS
from normdeploy.parsing.recipe import load_recipe, parse_recipe
from normdeploy.train import FileData, FileSplit, Split, batches, from_recipe, read_files
from normdeploy.train.fake_quantized import train_quantized
from normdeploy.train.from_recipe import recipe_data
from normdeploy.train.preprocess import as_raw

RNG = np.random.default_rng(0)
NUMBERS = RNG.normal(5, 3, (40, 3)).astype(np.float32)
WORDS = ["ant", "bee", "cat"]
LABELS = [WORDS[n] for n in NUMBERS.argmax(1)]


def table(path: Path) -> Path:
    columns = {name: NUMBERS[:, at] for at, name in enumerate("abc")}
    found = pa.table({**columns, "kind": LABELS})
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(found, path)
    else:
        pyarrow.parquet.write_table(found, path)
    return path


def idx(folder: Path, count: int = 30, *, packed: bool = False, name: str = "train") -> Path:
    images = RNG.integers(0, 256, (count, 6, 5), dtype=np.uint8)
    labels = RNG.integers(0, 3, count, dtype=np.uint8)
    end = ".gz" if packed else ""
    for what, array in (("images-idx3", images), ("labels-idx1", labels)):
        head = struct.pack(">BBBB" + "I" * array.ndim, 0, 0, 8, array.ndim, *array.shape)
        content = head + array.tobytes()
        (folder / f"{name}-{what}-ubyte{end}").write_bytes(gzip.compress(content) if packed else content)
    np.savez(folder / f"{name}-truth.npz", images=images, labels=labels)
    return folder / f"{name}-images-idx3-ubyte{end}"


def pictures(folder: Path, count: int = 8, size: tuple[int, int] = (7, 9)) -> Path:
    for number, word in enumerate(WORDS):
        (folder / word).mkdir(parents=True)
        for at in range(count):
            pixels = RNG.integers(0, 120, (*size, 3), dtype=np.uint8)
            pixels[..., number] += 120
            Image.fromarray(pixels).save(folder / word / f"{at}.png")
    return folder


def together(splits: object, what: str) -> torch.Tensor:
    return torch.cat([getattr(getattr(splits, part), what) for part in ("train", "valid", "test")])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_with_a_target_column(tmp_path: Path, suffix: str) -> None:
    path = table(tmp_path / f"rows{suffix}")
    splits = read_files(FileData(path, target="kind", standardize=False))
    assert splits.class_names == ("ant", "bee", "cat")
    rows = {
        tuple(x.tolist()): int(y) for x, y in zip(together(splits, "inputs"), together(splits, "targets"), strict=True)
    }
    assert rows == {tuple(x.tolist()): WORDS.index(y) for x, y in zip(NUMBERS, LABELS, strict=True)}
    assert [len(splits.train), len(splits.valid), len(splits.test)] == [26, 6, 8]
    scaled = read_files(FileData(path))
    train = splits.train.inputs.double()
    expected = (train - train.mean(0)) / train.std(0, correction=0)
    torch.testing.assert_close(scaled.train.inputs.double(), expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(as_raw(scaled).test.inputs, splits.test.inputs, rtol=1e-6, atol=1e-6)
    chosen = read_files(FileData(path, target="kind", columns=("c", "a"), standardize=False))
    assert chosen.train.inputs.shape == (26, 2)


def test_npz_and_a_test_file_of_its_own(tmp_path: Path) -> None:
    y = NUMBERS.argmax(1)
    np.savez(tmp_path / "all.npz", x=NUMBERS, y=y)
    np.savez(tmp_path / "test.npz", x=NUMBERS[:5], y=y[:5])
    splits = read_files(FileData(tmp_path / "all.npz", test=tmp_path / "test.npz", standardize=False))
    assert torch.equal(splits.test.inputs, torch.from_numpy(NUMBERS[:5]))
    assert len(splits.train) + len(splits.valid) == 40
    assert splits.class_names == ("0", "1", "2")


@pytest.mark.parametrize("packed", [False, True])
def test_idx_as_mnist_comes(tmp_path: Path, packed: bool) -> None:
    path = idx(tmp_path, packed=packed)
    splits = read_files(FileData(path, standardize=False))
    with np.load(tmp_path / "train-truth.npz") as truth:
        expected = {
            (image / np.float32(255)).tobytes(): label
            for image, label in zip(truth["images"], truth["labels"], strict=True)
        }
    inputs, targets = together(splits, "inputs"), together(splits, "targets")
    assert inputs.shape == (30, 1, 6, 5)
    for image, label in zip(inputs, targets, strict=True):
        assert expected[image.numpy().tobytes()] == int(splits.class_names[label])


@pytest.mark.parametrize("workers", [0, 2])
def test_images_by_class_are_read_when_they_are_needed(tmp_path: Path, workers: int) -> None:
    folder = pictures(tmp_path / "pictures")
    plain = read_files(FileData(folder, standardize=False, workers=workers))
    assert isinstance(plain.train, FileSplit)
    assert plain.class_names == ("ant", "bee", "cat")
    assert [len(plain.train), len(plain.valid), len(plain.test)] == [15, 4, 5]
    seen = list(batches(plain.train, 4, torch.Generator().manual_seed(0)))
    assert [len(part) for part in seen] == [4, 4, 4, 3]
    inputs = torch.cat([part.inputs for part in seen])
    assert inputs.shape == (15, 3, 7, 9)
    assert torch.equal(inputs.mean((2, 3)).argmax(1), torch.cat([part.targets for part in seen]))
    scaled = read_files(FileData(folder, workers=workers))
    every = torch.cat([part.inputs for part in batches(scaled.train, 5)]).double()
    torch.testing.assert_close(every.mean((0, 2, 3)), torch.zeros(3).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(every.std((0, 2, 3), correction=0), torch.ones(3).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(as_raw(scaled).test.head(2).inputs, plain.test.head(2).inputs, rtol=0, atol=1e-6)


def test_the_random_numbers_of_a_training_do_not_depend_on_how_data_is_read(tmp_path: Path) -> None:
    splits = read_files(FileData(pictures(tmp_path / "pictures")))
    torch.manual_seed(3)
    list(batches(splits.train, 4))
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1), drawn)


def test_changed_files_are_other_data(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pictures")
    before = read_files(FileData(folder)).train.digests()
    assert read_files(FileData(folder)).train.digests() == before
    for path in folder.rglob("*.png"):
        Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    assert read_files(FileData(folder)).train.digests() != before


def broken(folder: Path) -> dict[str, tuple[FileData, str]]:
    gaps = table(folder / "gaps.csv")
    lines = gaps.read_text().splitlines()
    gaps.write_text("\n".join([lines[0], ",1,2,ant", *lines[2:]]))
    table(folder / "rows.csv")
    (folder / "cut.parquet").write_bytes(table(folder / "rows.parquet").read_bytes()[:50])
    np.savez(folder / "three.npz", a=NUMBERS, b=NUMBERS, y=NUMBERS.argmax(1))
    np.savez(folder / "short.npz", x=NUMBERS, y=NUMBERS.argmax(1)[:3])
    cut = idx(folder)
    cut.write_bytes(cut.read_bytes()[:40])
    (idx(folder, name="alone").with_name("alone-labels-idx1-ubyte")).unlink()
    (folder / "rows.xlsx").write_text("?")
    (folder / "empty").mkdir()
    pictures(folder / "other")
    (folder / "other" / "dog").mkdir()
    pictures(folder / "pictures")
    for path in (folder / "pictures").rglob("*.png"):
        path.write_bytes(b"no image")
    return {
        "missing": (FileData(folder / "none.csv"), "does not exist"),
        "gaps": (FileData(gaps), "column 'a'.*1 empty cells"),
        "words": (FileData(folder / "rows.csv", target="a"), "column 'kind'.*string"),
        "column": (FileData(folder / "rows.csv", target="klass"), "0 columns called 'klass'.*a, b, c, kind"),
        "cut": (FileData(folder / "cut.parquet"), "cannot be read"),
        "three": (FileData(folder / "three.npz"), "a, b, y.*columns and target"),
        "short": (FileData(folder / "short.npz"), r"y \[3\]"),
        "idx": (FileData(cut), "no whole IDX file"),
        "labels": (FileData(folder / "alone-images-idx3-ubyte"), "alone-labels-idx1-ubyte does not exist"),
        "kind": (FileData(folder / "rows.xlsx"), "no kind that is known"),
        "empty": (FileData(folder / "empty"), "no folders"),
        "class": (FileData(folder / "other", test=folder / "other2"), "is no folder"),
        "image": (FileData(folder / "pictures", size=(4, 4)), "cannot be decoded"),
    }


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    for name, (what, words) in broken(tmp_path).items():
        with pytest.raises(InputError, match=words):
            read_files(what)
        assert name


MODEL = """
from torch import nn

class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())

class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)
    def forward(self, x):
        return self.last(self.norm(self.conv(x)).relu().mean((2, 3)))
"""


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("kind", ["Rows", "Pictures"])
def test_a_recipe_with_files_is_built_and_takes_raw_inputs(tmp_path: Path, kind: str) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    files = table(tmp_path / "rows.csv") if kind == "Rows" else pictures(tmp_path / "pictures")
    text = f'[model]\nsource = "net.py:{kind}"\nweights = "net.pt"\n[data]\nfiles = "{files.name}"\n'
    text += "workers = 1\n[train]\nepochs = 2\nbatch_size = 8\n"
    text += '[export]\npreprocess = true\n[verify]\nlevel = "quick"\n[bench]\nrepeats = 3\nbatch_size = 4\n'
    (tmp_path / "net.toml").write_text(text)
    recipe = load_recipe(tmp_path / "net.toml")
    report = build(recipe, device="cpu")
    assert report["status"] == "pass"
    assert report["quality"]["agreement"] == 1.0
    plain = read_files(FileData(files, standardize=False))
    raw = plain.test.head(5).inputs
    state = torch.load(tmp_path / "net.pt", weights_only=True)["state_dict"]
    scope: dict[str, type[nn.Module]] = {}
    exec(MODEL, scope)
    model = scope[kind]().double().eval()
    model.load_state_dict(state)
    by = recipe_data(recipe).standardization
    assert by is not None
    with torch.no_grad():
        truth = model((raw.double() - by.mean.double()) / by.deviation.double())
    session = ort.InferenceSession(tmp_path / "net.onnx")
    (output,) = session.run(None, {session.get_inputs()[0].name: raw.numpy()})
    np.testing.assert_allclose(output, truth.numpy(), rtol=1e-4, atol=1e-5)
    operators = [node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node]
    assert "BatchNormalization" not in operators
    assert not {"Sub", "Div"} & set(operators), "the standardization folds into the first layer"
    again = json.loads((tmp_path / "net.report.json").read_text())
    assert build(recipe, device="cpu")["stages"] == again["stages"]


@pytest.mark.usefixtures("short_turns")
@pytest.mark.filterwarnings("ignore:.*(is|are) deprecated.*")
def test_a_network_trained_for_int8_takes_raw_inputs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    table(tmp_path / "rows.csv")
    text = '[model]\nsource = "net.py:Rows"\nweights = "net.pt"\n[data]\nfiles = "rows.csv"\n[train]\nepochs = 20\n'
    text += 'batch_size = 8\n[export]\npreprocess = true\n[verify]\nlevel = "quick"\n[bench]\nrepeats = 3\n'
    (tmp_path / "net.toml").write_text(text + "[quantize]\nepochs = 1\n")
    trained: list[nn.Module] = []

    def kept(*args: Any, **named: Any) -> nn.Module:
        trained.append(train_quantized(*args, **named))
        return trained[0]

    monkeypatch.setattr(quantize_step, "train_quantized", kept)
    recipe = load_recipe(tmp_path / "net.toml")
    report = build(recipe, device="cpu")
    assert report["quantized"]["status"] == "pass"
    raw = read_files(FileData(tmp_path / "rows.csv", standardize=False)).test.head(100).inputs
    by = recipe_data(recipe).standardization
    assert by is not None
    with torch.no_grad():
        truth = trained[0].eval()(((raw.double() - by.mean.double()) / by.deviation.double()).float()).numpy()
        wrong = trained[0](raw).numpy()
    options = ort.SessionOptions()
    options.add_session_config_entry(*EXACT_PRODUCTS)  # 8-bit products saturate on some processors without it
    outputs = []
    for name in ("net.onnx", "net.qat.onnx"):
        session = ort.InferenceSession(tmp_path / name, options)
        outputs.append(session.run(None, {session.get_inputs()[0].name: raw.numpy()})[0])
    plain, quantized = outputs
    # another 20 steps of training moved it a little; inputs that were not standardized would give anything
    assert np.sqrt(np.square(quantized - plain).mean() / np.square(plain).mean()) < 0.3
    # a tie that rounds the other way is a step of int8
    assert np.linalg.norm(quantized - truth) < 0.05 * np.linalg.norm(truth)
    assert np.linalg.norm(wrong - truth) > 0.25 * np.linalg.norm(truth)


def test_every_key_of_the_recipe_reaches_the_reading(tmp_path: Path) -> None:
    base = {"model": {"source": "net.py:Net", "weights": "net.pt"}}
    given = {"files": "a", "test": "b", "target": "t", "columns": ["c"], "size": "4x6", "grey": True}
    given |= {"standardize": False, "workers": 3, "seed": 5}
    recipe = parse_recipe({**base, "data": given}, tmp_path / "net.toml")
    assert recipe.data is not None
    asked = from_recipe.file_data(recipe, recipe.data, "a")
    assert asked == FileData(tmp_path / "a", tmp_path / "b", "t", ("c",), (4, 6), True, False, 3, 5)


def test_grey_and_size_of_images_and_another_seed(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pictures")
    grey = read_files(FileData(folder, grey=True, size=(4, 6), standardize=False))
    assert grey.test.head(3).inputs.shape == (3, 1, 4, 6)
    other = read_files(FileData(folder, seed=1, standardize=False))
    assert other.train.digests() != read_files(FileData(folder, standardize=False)).train.digests()


def test_a_recipe_has_one_kind_of_data(tmp_path: Path) -> None:
    base = {"model": {"source": "net.py:Net", "weights": "net.pt"}}
    for data, word in (({}, "neither"), ({"source": "a.py:d", "files": "x.csv"}, "source and files")):
        with pytest.raises(RecipeError, match=word):
            parse_recipe({**base, "data": data}, tmp_path / "net.toml")
    one = parse_recipe({**base, "data": {"files": "x", "size": "64"}}, tmp_path / "net.toml")
    with pytest.raises(RecipeError, match=r"'64'.*HxW"):
        recipe_data(one)


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        (
            "missing",
            {},
            r"raised FileNotFoundError: .*nowhere.csv.*expected normdeploy.train.Splits: pass its arguments",
        ),
        ("missing", {"wher": 1}, r"does not take \{'wher': 1\}.*give them under \[data\] in "),
        ("ours", {}, r"^rows are missing; expected some: add them$"),
        ("listed", {}, r"data.py:listed returned a list; expected normdeploy.train.Splits"),
        ("SIZE", {}, r"data.py:SIZE is a int; expected a function"),
        ("left", {}, r"raised SystemExit: 3"),
    ],
)
def test_a_function_of_data_that_fails_is_told_by_its_name(tmp_path: Path, name, arguments, told) -> None:
    (tmp_path / "data.py").write_text("""
from normdeploy.errors import InputError
SIZE = 3
def missing(where="nowhere.csv"): return open(where)
def ours(): raise InputError("rows are missing; expected some: add them")
def listed(): return []
def left(): raise SystemExit(3)
""")
    table = {"source": f"data.py:{name}", "arguments": arguments}
    recipe = parse_recipe({"model": {"source": "net.py:N", "weights": "n.pt"}, "data": table}, tmp_path / "net.toml")
    with pytest.raises((SourceError, InputError), match=told):
        recipe_data(recipe)


def test_splits_of_tensors_are_as_they_were() -> None:
    split = Split(torch.arange(6.0)[:, None], torch.arange(6))
    assert [part.targets.tolist() for part in batches(split, 4)] == [[0, 1, 2, 3], [4, 5]]
    assert [part.targets.tolist() for part in batches(split, 4, at_least=3)] == [[0, 1, 2, 3]]
    assert split.head(2).targets.tolist() == [0, 1]
