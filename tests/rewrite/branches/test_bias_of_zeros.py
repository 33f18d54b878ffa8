"""A bias of zeros is no bias: exporters write one where the module has none."""

from __future__ import annotations

import numpy as np


def test_a_zero_bias_hides_nothing_behind_a_border(net):
    rng = np.random.default_rng(0)
    n = net(("n", 4, 9, 9))
    first = n.op("Conv", n.x, n.constant(rng.standard_normal((4, 4, 1, 1))), n.constant(np.zeros(4)))
    n.end(n.op("Conv", first, n.constant(rng.standard_normal((4, 4, 3, 3))), pads=[1, 1, 1, 1]))
    before = n.run()
    assert n.merge() == ["Conv"]
    assert np.abs(n.run() - before).max() <= 1e-12 * np.abs(before).max()
