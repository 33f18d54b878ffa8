"""Room: rewrite. Normalizations recognised, folded, merged, accounted for (see docs/design.md)."""

from normdeploy.rewrite.context import RewriteContext
from normdeploy.rewrite.ledger import Ledger, LedgerRow
from normdeploy.rewrite.pipeline import RewriteResult, rewrite

__all__ = ["Ledger", "LedgerRow", "RewriteContext", "RewriteResult", "rewrite"]
