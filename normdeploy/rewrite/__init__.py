"""Room: rewrite. Normalizations recognised, folded, merged, accounted for (see docs/design.md)."""

from normdeploy.rewrite.ledger import Ledger, LedgerRow
from normdeploy.rewrite.pipeline import RewriteResult, rewrite
from normdeploy.rewrite.rewrite_context import RewriteContext

__all__ = ["Ledger", "LedgerRow", "RewriteContext", "RewriteResult", "rewrite"]
