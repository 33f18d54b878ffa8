"""Where hints for the checker come from: the derivation kept beside the file, or a rewriting made anew.

None is believed (:mod:`normdeploy.verification.derivation`). What is kept counts where the file names its certificate
and the certificate names just this derivation, by digests; both are looked for beside the file, by its name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import onnx_ir as ir

from normdeploy.errors import GraphError
from normdeploy.graph.derivation import MOST_BYTES, Derivation, Hint, dataflow_keys, read_derivation
from normdeploy.onnxfile.light import own_digest
from normdeploy.onnxfile.named_bytes import NamedBytes
from normdeploy.verification.record.certificate import certificate_path, certified_derivation
from normdeploy.verification.record.kept_derivation import MOST_BYTES as MOST_CERTIFICATE
from normdeploy.verification.record.kept_derivation import derivation_path, read_bytes

ANEW, OWN, PLAIN = "made anew by rewriting", "handed over by the rewriting", "that nothing was rewritten"
"""Where hints come from that nothing keeps."""


@dataclass(frozen=True)
class Hints:
    """What the checker tries.

    Args:
        derivation: it. origin: where it comes from. rejected: why what lies beside the file was not used; "" where
            nothing does, or it was.
        anew: what our own rewriting says, where ``derivation`` was read from a file; None where it is that.
    """

    derivation: Derivation
    origin: str = ANEW
    rejected: str = ""
    anew: Derivation | None = None


def unchanged(source: ir.Model) -> Derivation:
    """Return the hints for a file that is the source as it is."""
    keys = dataflow_keys(source.graph)
    return Derivation(tuple(Hint(str(v.name), str(v.name), key) for v, key in keys.items() if v.name))


def kept_hints(path: str | os.PathLike[str], copy: str | os.PathLike[str] | NamedBytes, anew: Derivation) -> Hints:
    """Return the hints that are kept beside a file, or those made anew.

    Args:
        path: the file. copy: its bytes as they are judged. anew: the hints of a rewriting made now.

    Raises:
        StorageError: something cannot be read.
    """
    beside = derivation_path(path)
    if not os.path.lexists(beside):
        return Hints(anew)
    named = (own_digest(copy.content if isinstance(copy, NamedBytes) else copy) or (None, ""))[0]
    if named is None:
        return _rejected(anew, f"{beside.name} is not used: the file names no certificate")
    certificate = certificate_path(path)
    written, problem = read_bytes(certificate, MOST_CERTIFICATE, named)
    if written is None:
        return _rejected(anew, f"{beside.name} is not used: {certificate.name} {problem}")
    digest = certified_derivation(written)
    if digest is None:
        return _rejected(anew, f"{beside.name} is not used: {certificate.name} names no derivation")
    text, problem = read_bytes(beside, MOST_BYTES, digest)
    if text is None:
        return _rejected(anew, f"{beside.name} is not used: it {problem}")
    try:
        kept = read_derivation(text)
    except GraphError as error:
        return _rejected(anew, f"{beside.name} is not used: {error}")
    return Hints(kept.followed_by(anew) if kept.left_out else kept, beside.name, anew=anew)


def _rejected(anew: Derivation, why: str) -> Hints:
    return Hints(anew, rejected=f"{why}; hints were made anew")
