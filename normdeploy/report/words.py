"""The words that reports use, explained once, in front of the first use."""

from __future__ import annotations

from normdeploy.report.page import Details, Facts

WORDS = Details(
    "The words used here",
    [
        Facts(
            [
                (
                    "affine map",
                    "x times a scale plus a shift, each a number per channel: all that a trained BatchNorm is",
                ),
                ("folded", "computed into the weights of a neighbour; nothing is left of it when the network runs"),
                ("fused", "several operators, written as the one that stands for them"),
                ("merged", "parallel or consecutive linear layers, computed into one"),
                ("kept", "still there, because removing it would change the result; the reason stands beside it"),
                ("companions", "the other samples of a batch: what they are must not change a sample's own output"),
                ("site", "a place in the network where a normalization stood"),
                ("family", "a kind of input that the proof feeds: photographs, extremes, padded sequences, ..."),
                ("mutant", "the network with one deliberate error; a check that does not notice it proves nothing"),
                ("killed", "said of a mutant that was noticed"),
                ("bound", "the largest error that rounding explains; an error over its bound is a fault"),
            ]
        )
    ],
)
