from __future__ import annotations

import numpy as np
import pytest

from normdeploy.budget import parse_budget, relative_error, top1_loss
from normdeploy.errors import InputError, UsageError


@pytest.mark.parametrize(
    ("text", "metric", "limit"),
    [
        (None, "exact", 0.0),
        ("exact", "exact", 0.0),
        ("top1=0.5%", "top1", 0.005),
        ("top1 = 0.01", "top1", 0.01),
        ("rel=1e-2", "rel", 0.01),
        (" rel=1% ", "rel", 0.01),
    ],
)
def test_forms(text, metric, limit):
    budget = parse_budget(text)
    assert (budget.metric, budget.limit) == (metric, pytest.approx(limit))


@pytest.mark.parametrize(
    "text",
    ["", "fast", "rel", "top1=abc", "top1=200%", "top1", "top1=", "top5=1%", "rel=-1", "rel=0", "rel=100%", "rel=nan"],
)
def test_other_forms_are_refused(text):
    with pytest.raises(UsageError, match="expected"):
        parse_budget(text)


def test_losses_by_hand():
    truth = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 1.0], [1.0, 2.0]])
    found = truth.copy()
    found[1] = [0.0, 1.0]
    assert top1_loss([found], [truth]) == 0.25
    assert relative_error([truth * 1.01], [truth]) == pytest.approx(0.01)
    assert relative_error([truth, truth * 0.9], [truth, truth]) == pytest.approx(0.1)
    assert relative_error([np.array([1, 2, 3, 4])], [np.array([1, 2, 3, 5])]) == 0.25
    assert parse_budget("rel=1%").loss([found], [truth]) == pytest.approx(np.sqrt(2 / 32))


def test_nan_and_other_shapes_never_pass():
    truth = np.ones((2, 3))
    bad = truth.copy()
    bad[0, 0] = np.nan
    assert np.isnan(top1_loss([bad], [truth]))
    assert np.isnan(relative_error([bad], [truth]))
    assert np.isnan(relative_error([truth[:1]], [truth]))
    with pytest.raises(InputError, match="at least 2 classes"):
        top1_loss([np.ones((3, 1))], [np.ones((3, 1))])


def test_the_worst_of_several_outputs_counts_and_what_holds_no_scores_is_left_out():
    truth = [np.eye(4), np.eye(4)[::-1].copy(), np.arange(4), np.ones(4)]
    found = [truth[0].copy(), truth[1].copy(), np.arange(4)[::-1].copy(), np.zeros(4)]
    found[1][2:] = found[1][2:, ::-1]
    assert top1_loss(found, truth) == 0.5
    assert top1_loss([found[0], *truth[1:]], truth) == 0.0


def test_infinities_are_no_error_where_both_have_them():
    truth = np.array([[1.0, -np.inf], [2.0, np.inf]])
    assert relative_error([truth.copy()], [truth]) == 0.0
    other = truth.copy()
    other[0, 1] = -1e9
    assert np.isnan(relative_error([other], [truth]))
    assert np.isnan(relative_error([truth], [np.ones((2, 2))]))
