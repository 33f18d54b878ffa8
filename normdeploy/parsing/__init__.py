"""Room: parsing. What users write, made into values or refused: SOURCE, recipes, ``NAME=DTYPE:SHAPE``, counts, seconds.

Light: nothing here imports torch or NumPy before it is called.
"""
