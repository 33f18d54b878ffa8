"""A network for a table, with BatchNorm on the raw columns and a BN neck in front of the classifier.

Shows: normalizations with nothing linear in front of them. The first BatchNorm is the input standardization; the
columns, from 0.001 to 4,000, lie up to eight deviations from zero, so that it stays: in the first linear layer its
shift would cost precision. The last one, the neck, folds forward into the classifier. All others fold backward.

Data: the 569 breast tumours with 30 measurements each that scikit-learn ships, benign or malignant. Result and time:
see the metadata of tabular.safetensors (``normdeploy train export/tabular.toml`` makes it).

Source: data: W. N. Street, W. H. Wolberg, O. L. Mangasarian, Nuclear feature extraction for breast tumor diagnosis,
1993; BN neck: H. Luo et al., Bag of Tricks and a Strong Baseline for Deep Person Re-identification, 2019, figure 3.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normdeploy.errors import MissingDependencyError
from normdeploy.train.data import Split, Splits, split_rows


class TabularNet(nn.Module):
    """(N, 30) measurements in their own units -> (N, 2) logits: malignant, benign."""

    def __init__(self) -> None:
        super().__init__()
        self.standardize = nn.BatchNorm1d(30, affine=False)
        self.layer1 = nn.Sequential(nn.Linear(30, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3))
        self.layer2 = nn.Sequential(nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU())
        self.neck = nn.BatchNorm1d(32)
        self.classifier = nn.Linear(32, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.neck(self.layer2(self.layer1(self.standardize(x)))))


def data() -> Splits:
    """Return the tumours: 370 to train, 85 to validate, 114 to test.

    Raises:
        MissingDependencyError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_breast_cancer
    except ImportError as error:
        raise MissingDependencyError(
            "the table comes with scikit-learn, which is not installed; expected the extra 'models': "
            "pip install 'normdeploy[models]'"
        ) from error
    bunch = load_breast_cancer()
    x, y = torch.tensor(bunch.data, dtype=torch.float32), torch.tensor(bunch.target, dtype=torch.int64)
    train, valid, test = (Split(x[rows], y[rows]) for rows in split_rows(len(x)))
    return Splits(train, valid, test, class_names=("malignant", "benign"))
