"""The pieces of a llama layer, with the rotary pairing that GGUF files of these kinds expect."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class RmsNorm(nn.Module):
    """`x / rms(x) · weight`, computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)


class FeedForward(nn.Module):
    """SwiGLU: `down(silu(gate x) · up x)`."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return out


class Rotary:
    """Rotary positions over adjacent pairs of dimensions (llama.cpp's NORM type)."""

    def __init__(self, head_size: int, base: float) -> None:
        self._rates = base ** (-torch.arange(0, head_size, 2).float() / head_size)

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """`x` `[B, T, heads, head_size]` at `positions` `[B, T]`."""
        angles = positions[..., None, None].float() * self._rates
        cos, sin = angles.cos(), angles.sin()
        even, odd = x[..., 0::2].float(), x[..., 1::2].float()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


class Projections(nn.Module):
    """Queries, keys and values of grouped attention."""

    def __init__(
        self, width_in: int, width: int, heads: int, kv_heads: int, head_size: int, base: float
    ) -> None:
        super().__init__()
        self.q = nn.Linear(width_in, heads * head_size, bias=False)
        self.k = nn.Linear(width_in, kv_heads * head_size, bias=False)
        self.v = nn.Linear(width_in, kv_heads * head_size, bias=False)
        self.output = nn.Linear(heads * head_size, width, bias=False)
        self._heads = (heads, kv_heads, head_size)
        self._rotary = Rotary(head_size, base)

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Each `[B, heads, T, head_size]`, keys and values repeated to the number of query heads."""
        heads, kv_heads, size = self._heads
        batch, n = x.shape[:2]
        q = self._rotary(self.q(x).view(batch, n, heads, size), positions)
        k = self._rotary(self.k(x).view(batch, n, kv_heads, size), positions)
        v = self.v(x).view(batch, n, kv_heads, size)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return q, k.repeat_interleave(heads // kv_heads, 1), v.repeat_interleave(heads // kv_heads, 1)

    def join(self, heads: Tensor) -> Tensor:
        """`[B, heads, T, head_size]` → `[B, T, width]`."""
        out: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return out
