"""Quantizers and what is computed on integers, on every integer of their range."""
