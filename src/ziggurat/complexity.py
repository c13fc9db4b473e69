"""What a transformer costs, in closed form: HVT's Section 3.3 and S2 (arXiv:2103.10619).

And what RegionViT's attention holds (arXiv:2106.02689, Section 3).

The paper's FLOPs are multiply-accumulates: PyTorch's counter says twice as many. ``n`` tokens are
``d`` channels wide; norms, softmax, GELU and pooling itself are not counted.
"""

from collections.abc import Sequence
from itertools import pairwise


def msa(n: int, d: int) -> int:
    """Multi-head self-attention (Eq. 14): four projections and two n x n products."""
    return 4 * n * d**2 + 2 * n**2 * d


def mlp(n: int, d: int) -> int:
    """Two layers, d -> 4 d -> d (Eq. 15)."""
    return 8 * n * d**2


def block(n: int, d: int) -> int:
    """A transformer block (Eq. 7 and 16): 12 n d^2 + 2 n^2 d."""
    return msa(n, d) + mlp(n, d)


def compression(n: int, d: int) -> float:
    """How many times cheaper a block gets as n is halved (Eq. 8): between 2 and 4."""
    return 2 + 2 / (12 * d / n + 1)


def pooled_blocks(lengths: Sequence[int], d: int, depth: int) -> int:
    """All ``depth`` blocks of an HVT whose sequence shrinks along ``lengths`` (Fig. 2).

    A stage's first block still sees the length before its pooling:

        pooled_blocks((196, 97, 48, 23, 11), d=384, depth=12)
    """
    if len(lengths) == 1:
        return depth * block(lengths[0], d)
    others, left = divmod(depth, len(lengths) - 1)
    if left:
        raise ValueError(f"{depth} blocks cannot be split evenly into {len(lengths) - 1} stages")
    return sum(
        block(before, d) + (others - 1) * block(after, d) for before, after in pairwise(lengths)
    )


def attention_map(n: int) -> int:
    """Entries of the map of one head: every token attends to every token."""
    return n**2


def regional_maps(n: int, window: int) -> int:
    """Entries of the maps of RegionViT's two steps.

    Regional tokens attend to each other, and in each window of ``window`` x ``window`` the local
    tokens and their regional one do. The paper's N M^2 + (N / M^2)^2 leaves that one out.
    """
    regions, left = divmod(n, window**2)
    if left:
        raise ValueError(f"{n} tokens are not whole windows of {window} x {window}")
    return attention_map(regions) + regions * attention_map(window**2 + 1)
