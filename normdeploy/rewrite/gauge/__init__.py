"""Affine maps disappear by computing values otherwise: every value may be carried as x' with x = s x' + t, its gauge.

A map y = a x + b does nothing any more exactly where s_y = a s_x and t_y = a t_x + b. What gauges an operator allows is
its rule (:mod:`.rules`); the rules' ties are equations (:mod:`.system`), and :mod:`.remove_maps` asks for each map
whether they leave it room. Source: docs/folding.md.
"""
