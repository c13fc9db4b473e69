"""Multi-head self-attention and the pre-norm block, through torch's fused kernel."""

from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

from ziggurat.layers.linear import MACHINE, Linear, Mlp, is_plain, linear

FEW = range(128, 768)  # tokens; of fewer than 768, torch's kernel on a CPU takes 64 at a time
NARROW = 32  # channels of a head, above which torch's kernel is as good; but with a bias
CACHED = 2**20  # logits of one thread that stay in its cache and its part of the common one
INTELS = "Intel" in MACHINE.get("cpu_name", "")  # MKL, in torch's kernel, is at its best there


def head_width(dim: int, heads: int) -> int:
    """Channels of one head; an error if the heads do not divide the width."""
    if heads < 1 or dim % heads:
        near = [n for n in range(1, dim + 1) if dim % n == 0]
        near = sorted(near, key=lambda n: abs(n - heads))[:4]
        raise ValueError(
            f"a width of {dim} cannot be split into {heads} heads: "
            f"take one of {', '.join(map(str, sorted(near)))}"
        )
    return dim // heads


class Attention(nn.Module):
    """softmax(q k^T / sqrt(d) + bias) v, heads side by side (head-major) in q, k, v and output.

    ``kv_heads=1`` shares one key and one value among all heads (multi-query attention).
    """

    def __init__(self, dim: int, heads: int, kv_heads: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.kv_heads = kv_heads or heads
        self.head_dim = head_width(dim, heads)
        self.qkv = Linear(dim, (heads + 2 * self.kv_heads) * self.head_dim)
        self.apart: nn.ModuleList | None = None
        self.proj = Linear(dim, dim)

    def take_apart(self) -> None:
        """Make q, k and v by a product each, 1 / sqrt(d) in q's: for a graph that others run.

        They copy what they cut into three, and take another pass for what they scale. Not for
        training: these weights are none of a checkpoint's.
        """
        if self.kv_heads == self.heads and self.apart is None:
            weights, biases = self.qkv.weight.detach().chunk(3), self.qkv.bias.detach().chunk(3)
            self.apart = nn.ModuleList()
            factors = (self.head_dim**-0.5, 1.0, 1.0)
            for weight, bias, factor in zip(weights, biases, factors, strict=True):
                part = Linear(weight.shape[1], len(weight), device="meta")
                part.weight, part.bias = nn.Parameter(weight * factor), nn.Parameter(bias * factor)
                self.apart.append(part)
            del self.qkv

    def forward(self, x: Tensor, bias: Tensor | None = None, asked: Tensor | None = None) -> Tensor:
        """(B, N, C) -> (B, N, C); ``bias`` goes onto the logits, (B or 1, heads or 1, N or 1, N).

        ``asked`` are the tokens (B, n, C) that look, where not all of ``x`` do: (B, n, C) it gives.
        All tensors given to the kernel are 4-D: with more dimensions it is not the fused one.
        """
        B, N, C = x.shape
        if self.apart is not None:
            given = (x if asked is None else asked, x, x)
            q, k, v = (part(t) for part, t in zip(self.apart, given, strict=True))
            q, k, v = (t.unflatten(2, (self.heads, self.head_dim)) for t in (q, k, v))
        elif asked is not None:
            own, others = self.qkv.weight[:C], self.qkv.weight[C:]
            q = linear(asked, own, self.qkv.bias[:C]).unflatten(2, (self.heads, self.head_dim))
            both = linear(x, others, self.qkv.bias[C:]).view(B, N, 2, -1, self.head_dim)
            k, v = (t.expand(B, N, self.heads, self.head_dim) for t in both.unbind(2))
        elif self.kv_heads == self.heads:
            q, k, v = self.qkv(x).view(B, N, 3, self.heads, self.head_dim).unbind(2)
        else:
            kv = self.kv_heads * self.head_dim
            q, k, v = self.qkv(x).split([C, kv, kv], dim=2)
            q = q.unflatten(2, (self.heads, self.head_dim))
            k, v = (t.unflatten(2, (self.kv_heads, self.head_dim)) for t in (k, v))
            k, v = (t.expand(B, N, self.heads, self.head_dim) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # (B, heads, N, head_dim)
        if bias is not None:
            bias = bias.to(q.dtype)
        scale = None if self.apart is None else 1.0
        return self.proj(heads_together(attend(q, k, v, bias, scale)))


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None = None
) -> Tensor:
    """softmax(q k^T / sqrt(d) + bias) v, or ``scale`` q k^T; fused where there is a kernel for it.

    On a CPU there is none that gives a bias its gradient, and torch's own way around it looks for
    rows that see nothing. Ours have none.
    """
    if bias is not None and bias.requires_grad and q.device.type == "cpu":
        logits = (q * (scale or q.shape[-1] ** -0.5)) @ k.transpose(-2, -1)
        return logits.add_(bias).softmax(-1) @ v
    if scale is None and in_parts(q, k) and (q.shape[3] <= NARROW or bias is not None):
        return attend_in_parts(q, k, v, bias)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)


def in_parts(q: Tensor, k: Tensor) -> bool:
    """Whether to go without torch's kernel: few tokens, several threads, nobody who looks on."""
    return (
        not INTELS
        and is_plain(q)
        and q.shape[2] in FEW
        and torch.get_num_threads() > 1
        and 0 < q.shape[1] * q.shape[2] * k.shape[2] <= CACHED * torch.get_num_threads()
        and not torch.is_grad_enabled()
        and torch.backends.cuda.flash_sdp_enabled()  # CPUs', too; off: another way is asked for
        and not torch._C._len_torch_function_stack()  # attention rollout listens to the kernel
    )


def attend_in_parts(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """The same for as much of the batch at once as has its logits in the threads' caches.

    On AMD's processors, of 196 tokens and heads of 32, torch's kernel does on two threads 1.1 to
    1.6 times what it does on one, differently from process to process; this does 1.9 times as much.
    The price: threads meet more often, so that a machine busy with other things is felt more (half
    as fast there). On Intel's torch's kernel is 1.3 to 1.9 times as fast as this.
    """
    B, heads, N, _ = q.shape
    part = max(1, CACHED * torch.get_num_threads() // (heads * N * k.shape[2]))
    scratch = q.new_empty(min(part, B) * heads, N, k.shape[2])
    out = q.new_empty(B * heads, N, v.shape[3])
    every = [t.split(part * heads) for t in (*(t.flatten(0, 1) for t in (q, k, v)), out)]
    for i, (own_q, own_k, own_v, found) in enumerate(zip(*every, strict=True)):
        logits = scratch[: len(own_q)]
        torch.baddbmm(logits, own_q, own_k.mT, beta=0, alpha=q.shape[3] ** -0.5, out=logits)
        if bias is not None:
            own_bias = bias if len(bias) == 1 else bias[i * part : (i + 1) * part]
            logits.unflatten(0, (-1, heads)).add_(own_bias)
        torch.softmax(logits, -1, out=logits)
        torch.bmm(logits, own_v, out=found)
    return out.unflatten(0, (B, heads))


def heads_together(x: Tensor) -> Tensor:
    """(B, heads, N, head_dim) -> (B, N, heads * head_dim).

    The fused kernel lays its answer out so that this is free. An exported graph may run another
    kernel, which does not: there, and only there, the copy has to be asked for.
    """
    x = x.transpose(1, 2)
    if torch.compiler.is_exporting():
        x = x.clone(memory_format=torch.contiguous_format)
    return x.flatten(2)


class Block(nn.Module):
    """x + Attention(LN(x)), then x + MLP(LN(x)): the pre-norm transformer layer."""

    def __init__(
        self,
        dim: int,
        attention: nn.Module,
        drop_path: float = 0.0,
        mlp_ratio: float = 4.0,
        gelu: str = "none",
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=eps)
        self.attn = attention
        self.norm2 = nn.LayerNorm(dim, eps=eps)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), gelu)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor, *context: object) -> Tensor:
        """(B, N, C) -> (B, N, C); ``context`` is what this attention wants beside the tokens."""
        x = x + self.drop_path(self.attn(self.norm1(x), *context))
        return x + self.drop_path(self.mlp(self.norm2(x)))


def drop_path_rates(rate: float, depths: Sequence[int]) -> list[list[float]]:
    """Stochastic depth that grows linearly from 0 to ``rate`` over all layers, by stage."""
    total = sum(depths)
    rates = [rate * i / max(total - 1, 1) for i in range(total)]
    ends = list(accumulate(depths))
    return [rates[end - depth : end] for end, depth in zip(ends, depths, strict=True)]
