"""From an eager model to a graph: evaluation mode made certain, the trace, and trained weights.

Import from the modules: ``mode`` (evaluation mode), ``trace`` (eager model to graph), ``weights`` (files into models),
``reach`` (everything a model holds).
"""
