"""The questions of a verdict, one module each."""
