"""A character transformer with the LayerNorm that adds epsilon to the standard deviation (convention L4).

Shows: y = g (x - m) / (s + e) + b with the unbiased deviation s is *not* a LayerNormalization. It is exported exactly
(the operator and a factor per row that repairs it), or, where the user allows it, as the nearest LayerNormalization
with a verified bound. Besides: integer inputs, an embedding, a causal mask, dynamic batch and length.

Data: source text of the Python standard library of the interpreter that trains it, cut into pieces of 64 characters;
the accuracy is the share of next characters guessed right (the commonest, the space, alone gives about a quarter).
Result and time: see the metadata of char_transformer.safetensors (``normdeploy train export/char_transformer.toml``
makes it).

Source: the network is A. Vaswani et al., Attention Is All You Need, 2017 (decoder only, normalization first).
"""

from __future__ import annotations

import math
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn

from normdeploy.train.data import Split, Splits

LENGTH = 64
# modules that every version of Python 3 has, written by many hands
MODULES = """
    argparse ast bdb calendar cmd codecs configparser copy csv datetime decimal difflib dis doctest enum fractions
    ftplib functools glob gzip heapq imaplib inspect ipaddress locale mailbox mimetypes optparse os pdb pickle
    pickletools platform plistlib poplib posixpath pprint profile pydoc random selectors shelve shlex shutil smtplib
    socket ssl statistics string subprocess tarfile tempfile textwrap threading timeit tokenize traceback turtle types
    typing uuid warnings weakref zipfile
""".split()  # noqa: SIM905 - as words they can be read
# printable ASCII and the newline; everything else is the last number
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
VOCABULARY = len(ALPHABET) + 1


class DeviationNorm(nn.Module):
    """g (x - mean) / (std + eps) + b over the last axis, std with correction 1."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.ones(width))
        self.b = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.g * (x - mean) / (std + self.eps) + self.b


class CausalAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(later, -1e9).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = DeviationNorm(width), CausalAttention(width, heads)
        self.norm2 = DeviationNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class CharTransformer(nn.Module):
    """(N, T) character numbers, T up to 64 -> (N, T, 97) logits of the next character at each place."""

    def __init__(self, width: int = 64, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = DeviationNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.characters(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


def encode(text: str) -> Tensor:
    """Return the numbers of the characters of ``text``, int64."""
    numbers = {character: number for number, character in enumerate(ALPHABET)}
    return torch.tensor([numbers.get(character, VOCABULARY - 1) for character in text])


def data(characters: int = 500_000) -> Splits:
    """Return pieces of the standard library's source; validation and test pieces come from files of their own.

    Args:
        characters: how many to train on at most.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    files = [folder / f"{name}.py" for name in MODULES]
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file()]
    parts = {"train": texts[2:], "valid": texts[0:1], "test": texts[1:2]}

    def pieces(texts: list[str], limit: int) -> Split:
        ids = encode("\n".join(texts)[: limit + 1])
        count = (len(ids) - 1) // LENGTH
        return Split(ids[: count * LENGTH].view(count, LENGTH), ids[1 : count * LENGTH + 1].view(count, LENGTH))

    return Splits(pieces(parts["train"], characters), pieces(parts["valid"], 40_000), pieces(parts["test"], 40_000))
