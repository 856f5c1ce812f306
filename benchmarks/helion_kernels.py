"""Kernels of Helion, whose sources must be in a file of functions: for the benchmark of its searches, and tests."""

import helion.language as hl
import torch


def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the product of two matrices."""
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Return the softmax of each row."""
    m, _ = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(m):
        row = x[tile, :].to(torch.float32)
        power = torch.exp(row - torch.amax(row, dim=1, keepdim=True))
        out[tile, :] = (power / torch.sum(power, dim=1, keepdim=True)).to(x.dtype)
    return out


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return rows with mean 0 and variance 1, times weights, plus biases."""
    m, n = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(m):
        row = x[tile, :].to(torch.float32)
        centred = row - torch.sum(row, dim=1, keepdim=True) / n
        scale = torch.rsqrt(torch.sum(centred * centred, dim=1, keepdim=True) / n + 1e-5)
        out[tile, :] = (centred * scale * weight[None, :] + bias[None, :]).to(x.dtype)
    return out
