"""Room: conformance. Cases with known answers that any exporter, optimizer, runtime or verifier can be run through.

An adapter is a function of ten lines (:mod:`normdeploy.conformance.adapters`); ``normdeploy conformance`` runs it.
"""
