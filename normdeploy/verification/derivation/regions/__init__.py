"""Regions of operators that are one function, however they are spelled, compared at drawn points."""
