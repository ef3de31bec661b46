"""A Llama (RMSNorm, rotary positions, SwiGLU, grouped heads), as llama.cpp and the native engine compute it."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    vocabulary: int = 2048
    layers: int = 4
    width: int = 256
    heads: int = 4
    heads_kv: int = 2
    head_width: int = 64
    feed_forward: int = 512
    context: int = 1024
    rope_base: float = 10_000.0
    epsilon: float = 1e-5


def rotary_angles(shape: Shape) -> tuple[Tensor, Tensor]:
    steps = torch.arange(0, shape.head_width, 2, dtype=torch.float64) / shape.head_width
    angles = torch.arange(shape.context, dtype=torch.float64)[:, None] * shape.rope_base ** -steps
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Neighbouring elements are a pair, as GGUF files of Llama have them; x is [batch, heads, tokens, head]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Layer(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        queries, keys = shape.heads * shape.head_width, shape.heads_kv * shape.head_width
        self.attn_norm = nn.RMSNorm(shape.width, eps=shape.epsilon)
        self.attn_q = nn.Linear(shape.width, queries, bias=False)
        self.attn_k = nn.Linear(shape.width, keys, bias=False)
        self.attn_v = nn.Linear(shape.width, keys, bias=False)
        self.attn_output = nn.Linear(queries, shape.width, bias=False)
        self.ffn_norm = nn.RMSNorm(shape.width, eps=shape.epsilon)
        self.ffn_gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attend(self.attn_norm(x), cos, sin)
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))

    def attend(self, h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, tokens, _ = h.shape
        split = lambda y, heads: y.view(batch, tokens, heads, self.shape.head_width).transpose(1, 2)
        q = rotate(split(self.attn_q(h), self.shape.heads), cos, sin)
        k = rotate(split(self.attn_k(h), self.shape.heads_kv), cos, sin)
        v = split(self.attn_v(h), self.shape.heads_kv)
        shared = self.shape.heads // self.shape.heads_kv
        k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        # Rows are short: whole matrices of scores are quicker on CPUs than attention in tiles. They are padded behind
        # their end, where no earlier token looks.
        scores = (q @ k.transpose(-1, -2)).float() * self.shape.head_width**-0.5
        scores = scores.masked_fill(torch.ones(tokens, tokens, dtype=torch.bool).triu(1), float("-inf"))
        y = scores.softmax(-1).to(v.dtype) @ v
        return self.attn_output(y.transpose(1, 2).reshape(batch, tokens, -1))


class Llama(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        self.blk = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.width, eps=shape.epsilon)
        cos, sin = rotary_angles(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                # What adds to the residual stream begins small, so that depth does not make it grow.
                into_residual = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * shape.layers) ** 0.5 if into_residual else 0.02)

    def forward(self, tokens: Tensor, at: Tensor) -> Tensor:
        """Logits at those positions alone (a mask of the shape of `tokens`); the embedding is the output matrix."""
        x = self.token_embd(tokens)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for layer in self.blk:
            x = layer(x, cos, sin)
        return F.linear(self.output_norm(x[at]), self.token_embd.weight)
