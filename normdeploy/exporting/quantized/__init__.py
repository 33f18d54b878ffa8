"""torch's quantizers, in whatever spelling: what they compute, and how they pass a trace."""
