"""Operator set versions: graphs of an old version are raised, node by node, to one whose forms the rules know."""

from normdeploy.rewrite.opset.raising import OLDEST, RULES_OPSET, RaiseOpset, changed_form, raise_opset

__all__ = ["OLDEST", "RULES_OPSET", "RaiseOpset", "changed_form", "raise_opset"]
