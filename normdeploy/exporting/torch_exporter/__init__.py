"""torch's exporter: how it is called, what of it is left out, put right or made quiet, and what its errors mean."""
