"""A list of networks, one per line: which factory makes it, with which arguments, and what it is given.

    [audio]
    package.module:factory key=value key=value | input=float32:2x400 other=int64:2x12<99 | name

A heading says what kind of networks follows; ``#`` begins a comment. A value is a Python literal, a call
``package.module.factory(key=value, ...)``, lists and dicts of these, or a bare word, which is a string. An input is
``NAME=DTYPE:SHAPE`` as on the command line of normdeploy; ``<99`` draws integers from 0 to 98 (0 and 1 otherwise). The
name is that of the first argument that is a bare word, else the factory's, unless it is given.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from of_tests import load_timm
from torch import nn

from normdeploy.errors import UsageError
from normdeploy.parsing.examples import Example, make_example
from normdeploy.parsing.inputs import InputSpec, parse_inputs
from normdeploy.parsing.sources import build, load_source

GRAMMAR = "package.module:factory key=value ... | input=DTYPE:SHAPE ... | name"


@dataclass(frozen=True)
class Line:
    """One network of a list.

    Args:
        text: the line as it stands in the list.
        kind: the heading above it.
        factory: ``package.module:factory``.
        arguments: source text of its arguments, by key.
        inputs: what the network is given. tops: integers are drawn below these, by input.
        name: shown.
    """

    text: str
    kind: str
    factory: str
    arguments: dict[str, str]
    inputs: tuple[InputSpec, ...]
    tops: dict[str, int]
    name: str

    def model(self) -> nn.Module:
        """Return the network as its factory makes it, from a fixed seed."""
        if self.factory.startswith("timm"):
            load_timm()  # a plain import asks for a torchvision that fits
        torch.manual_seed(0)
        model: nn.Module = build(self.factory, {key: value(text) for key, text in self.arguments.items()})
        return model.eval()

    def example(self, model: nn.Module, *, seed: int = 0, rows: int | None = None) -> Example:
        """Return inputs for the network: those of one seed, with as many rows as the list says or as are asked for."""
        specs = self.inputs
        if rows is not None:
            specs = tuple(replace(spec, shape=(rows, *spec.shape[1:])) for spec in specs)
        made = make_example(specs, model, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        for name, top in self.tops.items():
            tensor = made.named()[name]
            tensor.copy_(torch.randint(0, top, tensor.shape, generator=generator))
        return made


def read_list(path: Path) -> list[Line]:
    """Return the networks of a list file.

    Raises:
        UsageError: a line does not follow the grammar, or two networks have one name.
    """
    kind, found = "", []
    for number, raw in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = raw.partition("#")[0].strip()
        if heading := re.fullmatch(r"\[(.+)\]", text):
            kind = heading[1]
        elif text:
            try:
                found.append(parse_line(text, kind))
            except UsageError as error:
                raise UsageError(f"{path}, line {number}: {error}") from error
    names = [line.name for line in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{path}: {name} stands there {names.count(name)} times; expected a name of its own each")
    return found


def parse_line(text: str, kind: str = "") -> Line:
    """Parse one line of a list.

    Raises:
        UsageError: it does not follow the grammar.
    """
    parts = [part.strip() for part in text.split("|")]
    if len(parts) not in (2, 3) or not all(parts):
        raise UsageError(f"the line is {text!r}; expected {GRAMMAR}")
    factory, *pairs = words(parts[0])
    arguments: dict[str, str] = {}
    for pair in pairs:
        key, equals, source = pair.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"argument is {pair!r}; expected key=value: {GRAMMAR}")
        arguments[key] = source
    tops = {}
    inputs = []
    for word in words(parts[1]):
        spec, less, top = word.partition("<")
        inputs.append(spec)
        if less:
            tops[spec.partition("=")[0]] = int(top)
    bare = [source for source in arguments.values() if re.fullmatch(r"[A-Za-z_][\w.]*", source)]
    strings = [source for source in bare if source not in ("True", "False", "None")]
    name = parts[2] if len(parts) == 3 else (strings or [factory.rpartition(":")[2]])[0]
    return Line(text, kind, factory, arguments, tuple(parse_inputs(inputs)), tops, name)


def words(text: str) -> Iterable[str]:
    """Yield the words of a text: what stands between blanks that no bracket or quote holds."""
    word, depth, quote = "", 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in "([{") - (letter in ")]}")
        if letter.isspace() and not depth and not quote:
            if word:
                yield word
            word = ""
        else:
            word += letter
    if word:
        yield word


def value(text: str) -> Any:
    """Return what an argument's text stands for."""
    try:
        parsed = ast.parse(text, mode="eval").body
    except SyntaxError:  # a word such as resnetv2_50x1.goog_in21k
        return text
    return _value(parsed)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        module, _, name = ast.unparse(node.func).rpartition(".")
        called = load_source(f"{module}:{name}")
        given = {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}
        return called(*(_value(item) for item in node.args), **given)
    if isinstance(node, ast.List | ast.Tuple):
        items = [_value(item) for item in node.elts]
        return items if isinstance(node, ast.List) else tuple(items)
    if isinstance(node, ast.Dict):
        return {_value(key): _value(item) for key, item in zip(node.keys, node.values, strict=True) if key is not None}
    if isinstance(node, ast.Name | ast.Attribute):
        return ast.unparse(node)
    return ast.literal_eval(node)
