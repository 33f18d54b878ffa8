"""A session of onnxruntime-web with the face of one of onnxruntime's: names in and out, and ``run``."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normdeploy.array_types import Array
from normdeploy.errors import GraphError
from normdeploy.files import names_data
from normdeploy.web.wire import pack, unpack

if TYPE_CHECKING:
    from normdeploy.web.browser import Page
    from normdeploy.web.host import WebHost

_SMALL = 4096  # bytes: shapes, axes and the like, which shape inference reads in the graph alone


@dataclass(frozen=True)
class Named:
    """An input or output, as ``get_inputs`` of onnxruntime's session lists them."""

    name: str


class WebSession:
    """A loaded model in the page.

    Args:
        host: where.
        model: the ONNX file, or its bytes.
        options: of ``InferenceSession.create``.
        threads: inside one operator.

    Raises:
        GraphError: the runtime refuses the file; the message is its own.
        BrowserError: the browser ended or does not answer.
    """

    def __init__(
        self, host: WebHost, model: str | os.PathLike[str] | bytes, options: Mapping[str, Any], threads: int
    ) -> None:
        self._host, self._page = host, host.page(threads)
        _release(host, self._page)
        server, places = host.server(), []
        graph, beside = _parts(model)
        try:
            places.append(host.place("model"))
            address = server.offer(places[0], graph)
            data = []
            for name, file in beside.items():
                places.append(host.place("data"))
                data.append({"path": name, "data": server.offer(places[-1], file)})
            given = {**options, **({"externalData": data} if data else {})}
            opened = host.ask(self._page, "open", address, given)
        finally:
            for place in places:
                server.withdraw(place)
        self._id = opened["id"]
        self._inputs = [Named(name) for name in opened["inputs"]]
        # Collected whenever, also while the page is asked something: released before the next session is opened
        weakref.finalize(self, _DROPPED.setdefault(self._page, []).append, self._id)

    def get_inputs(self) -> list[Named]:
        """Return the inputs' names."""
        return self._inputs

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Return outputs in the order of their names.

        Raises:
            GraphError: the runtime failed; the message is its own.
            BrowserError: the browser ended or does not answer.
        """
        server = self._host.server()
        given, taken = self._host.place("feeds"), self._host.place("results")
        try:
            feeds_at, results_at = server.offer(given, pack(feeds)), server.expect(taken)
            self._host.ask(self._page, "run", self._id, feeds_at, list(names), results_at)
            content = server.received(taken)
        finally:
            server.withdraw(given)
            server.withdraw(taken)
        found = {} if content is None else unpack(content)
        if missing := [name for name in names if name not in found]:
            raise GraphError(f"the page returned no output {missing[0]!r}; expected all that were asked for")
        return [found[name] for name in names]


_DROPPED: weakref.WeakKeyDictionary[Page, list[int]] = weakref.WeakKeyDictionary()
"""Sessions of a page that nobody holds any longer."""


def _release(host: WebHost, page: Page) -> None:
    dropped = _DROPPED.setdefault(page, [])
    ids, dropped[:] = dropped[:], []
    if ids:
        host.ask(page, "release", ids)


def _parts(model: str | os.PathLike[str] | bytes) -> tuple[Path | bytes, dict[str, Path]]:
    """Return a model and the files beside it, by the names that the model knows them under.

    A page has no folders: the names are made plain, and what is small goes inside.

    Raises:
        GraphError: data that may not be read, is missing or too short.
    """
    if isinstance(model, bytes) or not names_data(model):
        return (model if isinstance(model, bytes) else Path(model)), {}
    from normdeploy.onnxfile.data_places import point_to, put_inside
    from normdeploy.onnxfile.model import read_model

    read = read_model(model)
    names: dict[Path, str] = {}
    for tensor, place in read.external:
        if place.length <= _SMALL:
            put_inside(tensor, place)
        else:
            point_to(tensor, place, names.setdefault(place.file, f"data{len(names)}"))
    return read.proto.SerializeToString(), {name: file for file, name in names.items()}
