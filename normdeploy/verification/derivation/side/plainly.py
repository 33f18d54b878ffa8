"""Source and file in the operators that have laws.

Joined operators are written out, values in blocks of channels written plainly, guards that never act and choices that
no number shows taken out, and a Clip or a HardSwish is its parts where the other graph has these.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir

from normdeploy.verification.derivation.side.blocked_operators import has_blocks, write_without_blocks
from normdeploy.verification.derivation.side.joined_operators import has_joined, write_out
from normdeploy.verification.derivation.side.nan_guards import has_guards, take_out_guards
from normdeploy.verification.derivation.side.softplus_guards import has_choices, take_out_choices
from normdeploy.verification.derivation.side.written_pieces import pieces_differ, write_pieces


@dataclass(frozen=True)
class Plainly:
    """Two graphs that compute what source and file compute.

    Args:
        source, file: the graphs. between: names of values that the file itself does not have.
        gone: how many operators of the file were taken out.
    """

    source: ir.Model
    file: ir.Model
    between: Collection[str]
    gone: int


def written_plainly(source: ir.Model, file: ir.Model) -> Plainly | None:
    """Return both graphs written plainly; None where they are already."""
    kinds = (has_joined, has_guards, has_blocks, has_choices)
    pieces = pieces_differ(source, file)
    if not pieces and not any(has(model) for model in (source, file) for has in kinds):
        return None
    source, file = source.clone(), file.clone()
    write_without_blocks(source)
    write_out(source)
    take_out_guards(source)
    take_out_choices(source)
    between = write_without_blocks(file) | write_out(file)
    write_pieces(source, pieces)
    between |= write_pieces(file, pieces)
    return Plainly(source, file, between, take_out_guards(file) + take_out_choices(file))
