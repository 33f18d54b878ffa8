"""config.pbtxt against the fields of Triton's published model_config.proto that we write."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.external_data_helper
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from normdeploy.errors import InputError, OutputExistsError, StorageError, UsageError
from normdeploy.ort.digest import model_digest
from normdeploy.ort.settings import CUDA, OPENVINO_RUNTIME
from normdeploy.runtime import Plan, Predictor, Serving, Settings, Trial, load, package_triton, this_machine
from normdeploy.runtime.triton import config_text

_F = descriptor_pb2.FieldDescriptorProto
_KINDS = {"string": _F.TYPE_STRING, "int32": _F.TYPE_INT32, "int64": _F.TYPE_INT64, "uint32": _F.TYPE_UINT32,
          "uint64": _F.TYPE_UINT64, "bool": _F.TYPE_BOOL}  # fmt: skip
_DATA_TYPES = ["INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
               "FP32", "FP64", "STRING", "BF16"]  # fmt: skip
# message: {field: (number, type, repeated)}; a type that is no scalar is a message, an enum ("=Name") or a map
_MESSAGES = {
    "ModelTensorReshape": {"shape": (1, "int64", True)},
    "ModelInput": {"name": (1, "string", False), "data_type": (2, "=DataType", False), "dims": (4, "int64", True),
                   "reshape": (5, "ModelTensorReshape", False)},
    "ModelOutput": {"name": (1, "string", False), "data_type": (2, "=DataType", False), "dims": (3, "int64", True),
                    "label_filename": (4, "string", False), "reshape": (5, "ModelTensorReshape", False)},
    "ModelInstanceGroup": {"kind": (4, "=Kind", False), "count": (2, "int32", False),
                           "gpus": (3, "int32", True)},
    "Graph": {"level": (1, "int32", False)},
    "Accelerator": {"name": (1, "string", False), "parameters": (2, "map<string>", True)},
    "ExecutionAccelerators": {"gpu_execution_accelerator": (1, "Accelerator", True)},
    "ModelOptimizationPolicy": {"graph": (1, "Graph", False),
                                "execution_accelerators": (5, "ExecutionAccelerators", False)},
    "ModelDynamicBatching": {"preferred_batch_size": (1, "int32", True),
                             "max_queue_delay_microseconds": (2, "uint64", False)},
    "ModelParameter": {"string_value": (1, "string", False)},
    "WarmupInput": {"data_type": (1, "=DataType", False), "dims": (2, "int64", True),
                    "input_data_file": (5, "string", False)},
    "ModelWarmup": {"name": (1, "string", False), "batch_size": (2, "uint32", False),
                    "inputs": (3, "map<WarmupInput>", True)},
    "ModelConfig": {"name": (1, "string", False), "backend": (17, "string", False),
                    "max_batch_size": (4, "int32", False), "input": (5, "ModelInput", True),
                    "output": (6, "ModelOutput", True), "optimization": (12, "ModelOptimizationPolicy", False),
                    "dynamic_batching": (11, "ModelDynamicBatching", False),
                    "instance_group": (7, "ModelInstanceGroup", True),
                    "parameters": (14, "map<ModelParameter>", True), "model_warmup": (16, "ModelWarmup", True)},
}  # fmt: skip


def _set_type(field: _F, kind: str) -> None:
    if kind in _KINDS:
        field.type = _KINDS[kind]
    elif kind.startswith("="):
        field.type, field.type_name = _F.TYPE_ENUM, f".inference.{kind[1:]}"
    else:
        field.type, field.type_name = _F.TYPE_MESSAGE, f".inference.{kind}"


@pytest.fixture(scope="module")
def model_config():
    """Return the message class ModelConfig."""
    file = descriptor_pb2.FileDescriptorProto(name="model_config.proto", package="inference", syntax="proto3")
    for name, values in (
        ("DataType", [f"TYPE_{kind}" for kind in _DATA_TYPES]),
        ("Kind", ["KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"]),
    ):
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind, repeated) in fields.items():
            field = message.field.add(name=field_name, number=number)
            field.label = _F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
            if kind.startswith("map<"):
                entry_name = "".join(part.capitalize() for part in field_name.split("_")) + "Measured"
                entry = message.nested_type.add(name=entry_name)
                entry.options.map_entry = True
                for at, (key, of) in enumerate((("key", "string"), ("value", kind[4:-1])), 1):
                    part = entry.field.add(name=key, number=at, label=_F.LABEL_OPTIONAL)
                    _set_type(part, of)
                field.type, field.type_name = _F.TYPE_MESSAGE, f".inference.{name}.{entry_name}"
            else:
                _set_type(field, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig"))


def _parse(model_config, target):
    return text_format.Parse((target / "config.pbtxt").read_text(), model_config())


def test_repository_of_a_classifier(model_config, convnet, tmp_path):
    target = package_triton(convnet, tmp_path / "repo", max_batch_size=32)
    assert target == tmp_path / "repo" / "conv"
    found = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
    assert found == ["1/model.onnx", "config.pbtxt", "warmup/0"]
    assert [path.name for path in (tmp_path / "repo").iterdir()] == ["conv"]
    assert (target / "1" / "model.onnx").read_bytes() == convnet.read_bytes()
    config = _parse(model_config, target)
    assert (config.name, config.backend, config.max_batch_size) == ("conv", "onnxruntime", 32)
    (source,), (result,) = config.input, config.output
    assert (source.name, source.data_type, list(source.dims)) == ("x", _DATA_TYPES.index("FP32"), [3, 16, 16])
    assert (result.name, result.data_type, list(result.dims)) == ("y", _DATA_TYPES.index("FP32"), [5])
    assert config.HasField("dynamic_batching")
    assert [(group.count, group.kind) for group in config.instance_group] == [(1, 2)]
    (warm,) = config.model_warmup
    assert warm.batch_size == 1
    sample = np.frombuffer((target / "warmup" / warm.inputs["x"].input_data_file).read_bytes(), np.float32)
    assert list(warm.inputs["x"].dims) == [3, 16, 16]
    served = load(target / "1" / "model.onnx")(sample.reshape(1, *warm.inputs["x"].dims))
    assert np.isfinite(served).all()


def test_fixed_batch_is_not_batched(model_config, write_model, tmp_path):
    path = write_model("n (float[4, 3] x, int64[4, k] i) => (float[4, 3] y, int64[4, k] j) { y = Neg(x) j = Neg(i) }")
    with pytest.raises(UsageError, match="no size for dimension 'k'"):
        package_triton(path, tmp_path / "repo")
    config = _parse(model_config, package_triton(path, tmp_path / "repo", sizes={"k": 7}))
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert [list(tensor.dims) for tensor in (*config.input, *config.output)] == [[4, 3], [4, -1], [4, 3], [4, -1]]
    assert [tensor.data_type for tensor in config.input] == [_DATA_TYPES.index("FP32"), _DATA_TYPES.index("INT64")]
    assert list(config.model_warmup[0].inputs["i"].dims) == [4, 7]


def test_one_number_per_sample_is_reshaped(model_config, write_model, tmp_path):
    path = write_model("n (int64[batch] i) => (int64[batch] y) { y = Neg(i) }")
    config = _parse(model_config, package_triton(path, tmp_path / "repo"))
    assert list(config.input[0].dims) == [1]
    assert config.input[0].HasField("reshape")
    assert list(config.input[0].reshape.shape) == []
    assert list(config.model_warmup[0].inputs["i"].dims) == [1]


def test_own_samples_warm_up(convnet, tmp_path):
    x = np.random.default_rng(1).normal(size=(3, 3, 16, 16)).astype(np.float32)
    target = package_triton(convnet, tmp_path, inputs={"x": x}, name="other")
    np.testing.assert_array_equal(np.frombuffer((target / "warmup" / "0").read_bytes(), np.float32), x[0].ravel())


def test_settings_of_a_plan_are_served(model_config, linear, tmp_path):
    path = linear[0]
    settings = Settings(threads=3, parallel=True, optimization="extended")
    trial = Trial("fast", "float32", "chosen", file=path.name, settings=settings)
    digest = model_digest(path)
    plan = Plan(path.name, digest, "exact", "none", this_machine(), (trial,), digest)
    config = _parse(model_config, package_triton(path, tmp_path / "repo", plan=plan))
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    assert parameters == {"intra_op_thread_count": "3", "execution_mode": "1"}
    assert config.optimization.graph.level == 1


class _Described(Predictor):
    """A Predictor whose tensors are known without its provider being usable here."""

    @property
    def inputs(self):
        return load(self.path).inputs

    @property
    def outputs(self):
        return load(self.path).outputs


def test_cuda_keeps_its_float32_option(model_config, linear):
    predictor = _Described(linear[0], Settings(provider=CUDA, options=(("use_tf32", "0"),)))
    text = config_text(predictor, "n", {"x": np.zeros((1, 3), np.float32)}, 8)
    config = text_format.Parse(text, model_config())
    assert [group.kind for group in config.instance_group] == [1]
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert (accelerator.name, dict(accelerator.parameters)) == ("cuda", {"use_tf32": "0"})


def test_what_triton_cannot_be_told_is_refused(linear, tmp_path):
    sample = {"x": np.zeros((1, 3), np.float32)}
    with pytest.raises(UsageError, match="package without the plan"):
        config_text(_Described(linear[0], Settings(provider=OPENVINO_RUNTIME)), "n", sample, 8)
    with pytest.raises(UsageError, match="leaves out the optimizers MatMulAddFusion"):
        config_text(Predictor(linear[0], Settings(disabled_optimizers=("MatMulAddFusion",))), "n", sample, 8)
    with pytest.raises(UsageError, match="max_batch_size=0"):
        package_triton(linear[0], tmp_path / "repo", max_batch_size=0)


def test_nothing_is_overwritten_unasked(linear, tmp_path):
    target = package_triton(linear[0], tmp_path)
    (target / "mine").touch()
    with pytest.raises(OutputExistsError):
        package_triton(linear[0], tmp_path)
    assert (target / "mine").exists()
    package_triton(linear[0], tmp_path, overwrite=True)
    assert (target / "mine").exists()


def test_weights_beside_the_file_travel_along(linear, tmp_path):
    model = onnx.load(linear[0])
    (tmp_path / "big").mkdir()
    path = tmp_path / "big" / "big.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="big.onnx.data", size_threshold=0)
    target = package_triton(path, tmp_path / "repo")
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(load(target / "1" / "model.onnx")(x), load(linear[0])(x))


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../x", "/tmp", "", "a\\b", "a\0b", "a\x1b[31m", "a:b", "a\nb"])
def test_a_name_that_climbs_or_holds_folders_is_refused(name, linear, tmp_path):
    repository = tmp_path / "above" / "repo"
    repository.mkdir(parents=True)
    (tmp_path / "above" / "mine").touch()
    with pytest.raises(UsageError, match="plain name"):
        package_triton(linear[0], repository, name=name, overwrite=True)
    assert (tmp_path / "above" / "mine").exists()
    assert list(repository.iterdir()) == []


def test_other_versions_stay(linear, write_model, tmp_path):
    target = package_triton(linear[0], tmp_path / "repo", name="m")
    (target / "2").mkdir()
    (target / "2" / "model.onnx").write_bytes(b"second")
    (target / "labels.txt").write_text("cat")
    (target / "1" / "stale.bin").touch()
    other = write_model("n (float[batch, 3] x) => (float[batch, 3] y) { y = Neg(x) }", name="other.onnx")
    assert package_triton(other, tmp_path / "repo", name="m", overwrite=True) == target
    assert (target / "1" / "model.onnx").read_bytes() == other.read_bytes()
    assert not (target / "1" / "stale.bin").exists()  # version 1 is what was named: it is replaced whole
    assert (target / "2" / "model.onnx").read_bytes() == b"second"
    assert (target / "labels.txt").read_text() == "cat"
    assert [path.name for path in (tmp_path / "repo").iterdir()] == ["m"]


def test_a_failed_exchange_leaves_what_was_there(linear, tmp_path, monkeypatch):
    target = package_triton(linear[0], tmp_path / "repo", name="m")
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    rename = type(target).rename

    def refused(self, to):
        if self.parent.name == "new" and self.name == "warmup":
            raise OSError(28, "No space left on device")
        return rename(self, to)

    monkeypatch.setattr(type(target), "rename", refused)
    with pytest.raises(StorageError, match="No space left"):
        package_triton(linear[0], tmp_path / "repo", name="m", overwrite=True, max_batch_size=3)
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in target.rglob("*") if path.is_file()} == before
    assert [path.name for path in (tmp_path / "repo").iterdir()] == ["m"]


def test_what_is_no_folder_is_not_replaced(linear, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    for name in ("file", "link"):
        with pytest.raises(UsageError, match="no folder"):
            package_triton(linear[0], tmp_path, name=name, overwrite=True)
    with pytest.raises(UsageError, match="no folder"):
        package_triton(linear[0], tmp_path / "file", name="m", overwrite=True)
    assert (tmp_path / "file").read_text() == "mine"
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "n (float[b, 3] x) => (float[b, 3] y, float s) { y = Neg(x) s = ReduceSum<keepdims=0>(x) }",
        "n (float x) => (float[1] y) <int64[1] one = {1}> { y = Reshape(x, one) }",
    ],
)
def test_a_number_without_axes_is_refused_because_the_server_refuses_it(text, write_model, tmp_path):
    with pytest.raises(UsageError, match=r"without axes.*reshape\(1\)"):
        package_triton(write_model(text), tmp_path / "repo")
    assert not (tmp_path / "repo").exists()


def test_instances_delay_preferred_sizes_and_labels(model_config, convnet, tmp_path):
    labels = tmp_path / "names"
    labels.write_text("a\nb\nc\nd\ne")
    serving = Serving(instances=3, queue_delay=250, preferred=(4, 8), labels=labels)
    target = package_triton(convnet, tmp_path / "repo", max_batch_size=8, serving=serving)
    config = _parse(model_config, target)
    assert [(group.count, group.kind, list(group.gpus)) for group in config.instance_group] == [(3, 2, [])]
    assert list(config.dynamic_batching.preferred_batch_size) == [4, 8]
    assert config.dynamic_batching.max_queue_delay_microseconds == 250
    assert (target / config.output[0].label_filename).read_text().split() == list("abcde")
    labels.write_text("a\nb")
    with pytest.raises(InputError, match=r"2 lines.*expected 5"):
        package_triton(convnet, tmp_path / "other", serving=serving)
    with pytest.raises(UsageError, match="at most"):
        package_triton(convnet, tmp_path / "other", max_batch_size=4, serving=Serving(preferred=(8,)))
    with pytest.raises(UsageError, match="on the CPU"):
        package_triton(convnet, tmp_path / "other", serving=Serving(gpus=(0,)))
    for wrong in ({"instances": 0}, {"queue_delay": -1}, {"preferred": (0,)}, {"gpus": (-1,)}):
        with pytest.raises(UsageError, match="no negative"):
            Serving(**wrong)


def test_a_fixed_batch_takes_no_batching(write_model, tmp_path):
    path = write_model("n (float[4, 3] x) => (float[4, 3] y) { y = Neg(x) }")
    with pytest.raises(UsageError, match="fixes its batch"):
        package_triton(path, tmp_path / "repo", serving=Serving(queue_delay=10))


@pytest.mark.parametrize(("asked", "expected"), [((), [1]), ((0, 2), [0, 2])])
def test_gpus_are_those_asked_for_or_the_plans(model_config, linear, asked, expected):
    predictor = _Described(linear[0], Settings(provider=CUDA, options=(("device_id", "1"), ("use_tf32", "0"))))
    text = config_text(predictor, "n", {"x": np.zeros((1, 3), np.float32)}, 8, Serving(gpus=asked))
    config = text_format.Parse(text, model_config())
    assert [(group.kind, list(group.gpus)) for group in config.instance_group] == [(1, expected)]
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert dict(accelerator.parameters) == {"use_tf32": "0"}


def test_labels_that_cannot_be_served_are_refused(convnet, write_model, tmp_path):
    two = write_model("t (float[n, 2] x) => (float[n, 2] y, float[n, 2] z) { y = Neg(x) z = Abs(x) }", name="two.onnx")
    (tmp_path / "names").write_text("a\nb")
    with pytest.raises(UsageError, match="labels for a model with the outputs y, z; expected one output"):
        package_triton(two, tmp_path / "repo", serving=Serving(labels=tmp_path / "names"))
    with pytest.raises(InputError, match="none cannot be read"):
        package_triton(convnet, tmp_path / "repo", serving=Serving(labels=tmp_path / "none"))
    (tmp_path / "names").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="names cannot be read"):
        package_triton(convnet, tmp_path / "repo", serving=Serving(labels=tmp_path / "names"))
    assert not list((tmp_path / "repo").rglob("config.pbtxt"))
