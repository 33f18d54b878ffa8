"""What a model takes, guessed from its signature and its first layers, and tried: nothing is guessed that does not run.

A guess is for a person to look at: it is printed with the option that replaces it. Sizes that a network leaves open
(an image's, a sequence's length) have the usual values of networks with such a first layer.
"""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from normdeploy.errors import InputError
from normdeploy.exporting.eager import uncompiled
from normdeploy.exporting.module.mode import evaluation_mode
from normdeploy.exporting.torch_exporter.trace_errors import essential_line
from normdeploy.parsing.examples import make_example
from normdeploy.parsing.inputs import InputSpec

_TRIES = 48
_LENGTHS = (16, 32, 64, 128, 256, 1024, 16000)
_IMAGES = (32, 28, 64, 96, 128, 224, 16, 8, 256, 299, 384, 512)
_VOLUMES = (16, 32, 64)
_IDS = ("ids", "tokens", "token", "idx", "index", "indices", "words", "src", "tgt", "labels")
_MASKS = ("mask", "padding", "valid")

Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class Guess:
    """What a model takes, as far as can be seen.

    Args:
        inputs: one description per required parameter of ``forward``.
        why: which layers they come from.
    """

    inputs: list[InputSpec]
    why: str

    def flags(self) -> str:
        """Return the options that say the same: ``--input x=float32:batchx3x224x224``."""
        return " ".join(f"--input {spec}" for spec in self.inputs)


@dataclass(frozen=True)
class _Candidate:
    dtype: str
    shape: Shape
    why: str


def guess_inputs(model: nn.Module) -> Guess:
    """Guess the inputs of a model: those with which its first layers could be fed and the whole of it runs.

    Args:
        model: on the CPU; given back as it was.

    Returns:
        Guess: ``.inputs .why .flags()``.

    Raises:
        InputError: nothing that was tried runs, or there is no parameter to feed.
    """
    names = _required(model)
    if not names:
        raise InputError(
            f"{type(model).__name__}.forward has no required parameter; expected inputs to guess: describe them with "
            "--input NAME=DTYPE:SHAPE"
        )
    known = _known(model, names)
    layers = list(_layers(model))
    lists = [known] if known else []
    lists += [list(found) for found in _combinations([_candidates(name, layers) for name in names])]
    last = "no layer tells what it takes"
    tried = []
    for candidates in lists:
        specs = [InputSpec(name, c.dtype, c.shape) for name, c in zip(names, candidates, strict=True)]
        failure = _failure(model, specs)
        if not failure:
            return Guess(specs, "; ".join(dict.fromkeys(c.why for c in candidates)))
        last = failure
        tried.append(" ".join(str(spec) for spec in specs))
    raise InputError(
        f"the inputs of {type(model).__name__} are not given and cannot be guessed: {len(tried)} were tried"
        + (f", the last {tried[-1]} ({last})" if tried else f" ({last})")
        + f"; expected --input NAME=DTYPE:SHAPE for {', '.join(names)}, as --input {names[0]}=float32:batchx3x224x224; "
        f"{names[0]}.key=... for the entry of a dictionary, {names[0]}.0=... for a tuple's first"
    )


def _required(model: nn.Module) -> list[str]:
    """Return the parameters of ``forward`` that have no default; the name of the stars where there is none."""
    items = inspect.signature(model.forward).parameters.values()
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [item.name for item in items if item.default is item.empty and item.kind not in stars]
    return needed or [item.name for item in items if item.kind is item.VAR_POSITIONAL]


def _known(model: nn.Module, names: Sequence[str]) -> list[_Candidate]:
    """Return what the model itself says: a Lightning module's example, timm's and other zoos' configurations."""
    example = getattr(model, "example_input_array", None)
    if isinstance(example, torch.Tensor) and len(names) == 1:
        shape: Shape = ("batch", *example.shape[1:]) if example.ndim else ()
        return [_Candidate(str(example.dtype).removeprefix("torch."), shape, "example_input_array")]
    for attribute in ("pretrained_cfg", "default_cfg"):
        configuration = getattr(model, attribute, None)
        size = configuration.get("input_size") if isinstance(configuration, dict) else None
        if len(names) == 1 and isinstance(size, (tuple, list)) and all(isinstance(n, int) for n in size):
            return [_Candidate("float32", ("batch", *size), f"{attribute}['input_size']")]
    return []


def _layers(model: nn.Module) -> Iterator[list[_Candidate]]:
    """Yield for each layer with weights, in the order of their definition, what it could be fed."""
    for path, module in model.named_modules():
        found = list(_fed(module))
        if found:
            why = f"{path or 'the model'} is {_described(module)}"
            yield [_Candidate(dtype, shape, why) for dtype, shape in found]


def _described(module: nn.Module) -> str:
    text = repr(module).splitlines()[0]
    return text if len(text) <= 60 and text.count("(") == text.count(")") else type(module).__name__


def _fed(module: nn.Module) -> Iterator[tuple[str, Shape]]:
    """Yield types and shapes of inputs that a layer takes, the likeliest first."""
    dtype = next((str(p.dtype).removeprefix("torch.") for p in module.parameters() if p.is_floating_point()), "float32")
    if isinstance(module, nn.Embedding):
        yield from (("int64", ("batch", length)) for length in _LENGTHS[:3])
        yield "int64", ("batch",)
    elif isinstance(module, nn.Conv2d):
        # a stem with a large or striding kernel is one of large images
        large = max(*module.kernel_size, *(2 * step for step in module.stride)) > 3
        sizes = (224, *_IMAGES) if large else _IMAGES
        yield from ((dtype, ("batch", module.in_channels, size, size)) for size in dict.fromkeys(sizes))
    elif isinstance(module, nn.Conv1d):
        yield from ((dtype, ("batch", module.in_channels, length)) for length in _LENGTHS)
    elif isinstance(module, nn.Conv3d):
        yield from ((dtype, ("batch", module.in_channels, size, size, size)) for size in _VOLUMES)
    elif isinstance(module, nn.RNNBase):
        first = ("batch", 16) if module.batch_first else (16, "batch")
        yield dtype, (*first, module.input_size)
    elif isinstance(module, nn.MultiheadAttention):
        first = ("batch", 16) if module.batch_first else (16, "batch")
        yield dtype, (*first, module.embed_dim)
    elif isinstance(module, nn.Linear):
        yield dtype, ("batch", module.in_features)
        yield dtype, ("batch", 16, module.in_features)
        yield from _flattened(dtype, module.in_features)
    elif isinstance(module, nn.LayerNorm):
        yield dtype, ("batch", 16, *module.normalized_shape)
        yield dtype, ("batch", *module.normalized_shape)
    elif isinstance(module, nn.BatchNorm1d):
        yield dtype, ("batch", module.num_features)
        yield dtype, ("batch", module.num_features, 16)
    elif isinstance(module, (nn.BatchNorm2d, nn.InstanceNorm2d)):
        yield dtype, ("batch", module.num_features, 32, 32)
    elif isinstance(module, nn.GroupNorm):
        yield dtype, ("batch", module.num_channels, 32, 32)
        yield dtype, ("batch", module.num_channels)


def _flattened(dtype: str, features: int) -> Iterator[tuple[str, Shape]]:
    """Yield square images that a first linear layer may have been given flattened."""
    for channels in (1, 3):
        side = round((features / channels) ** 0.5)
        if side > 1 and channels * side * side == features:
            yield dtype, ("batch", channels, side, side)


def _candidates(name: str, layers: Sequence[list[_Candidate]]) -> list[_Candidate]:
    """Return what a parameter could be fed: by its name where that tells, otherwise as the first layers take."""
    words = name.lower().split("_")
    if any(word.startswith(_MASKS) for word in words):
        kinds = ("int64", "bool", "float32")
        return [_Candidate(kind, ("batch", 16), f"{name} is called a mask") for kind in kinds]
    flat = [candidate for layer in layers[:6] for candidate in layer]
    ids = [candidate for candidate in flat if candidate.dtype == "int64"]
    if any(word in _IDS for word in words) and ids:
        return ids + [candidate for candidate in flat if candidate.dtype != "int64"]
    return flat


def _combinations(candidates: Sequence[list[_Candidate]]) -> Iterator[tuple[_Candidate, ...]]:
    """Yield one candidate per parameter, the likely ones first, as many as are worth trying."""
    if len(candidates) == 1:
        yield from itertools.islice(((candidate,) for candidate in candidates[0]), _TRIES)
        return
    ranks = [range(min(len(found), 12)) for found in candidates]
    places = sorted(itertools.product(*ranks), key=lambda chosen: (sum(chosen), max(chosen, default=0)))
    for chosen in places[:_TRIES]:
        yield tuple(found[place] for found, place in zip(candidates, chosen, strict=True))


def _failure(model: nn.Module, specs: Sequence[InputSpec]) -> str:
    """Run the model; return why it does not run, or nothing."""
    example = make_example(specs, model)
    try:
        with uncompiled(), evaluation_mode(model), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what was only tried
            model(*example.args, **example.kwargs)
    except Exception as error:  # whatever somebody's forward raises on what it was not made for
        return f"{type(error).__name__}: {essential_line(error)}"
    return ""


def guess_note(guess: Guess) -> str:
    """Say what was guessed, from what, and how to say otherwise."""
    return f"inputs are guessed ({guess.why}): {guess.flags()} ; give them so to have others"
