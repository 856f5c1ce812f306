"""Attention, forward, without the matrix of scores: a running maximum and a running sum of each row of queries."""

import itertools

import torch
import triton
import triton.language as tl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = (
    {"HEADS": 64, "LENGTH": 4096, "DEPTH": 128, "CAUSAL": 1},
    {"HEADS": 256, "LENGTH": 1024, "DEPTH": 64, "CAUSAL": 0},
)
SMALL = (
    {"HEADS": 2, "LENGTH": 256, "DEPTH": 64, "CAUSAL": 1},
    {"HEADS": 3, "LENGTH": 200, "DEPTH": 32, "CAUSAL": 0},
    {"HEADS": 1, "LENGTH": 200, "DEPTH": 32, "CAUSAL": 1},
)

CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages)
    for m, n, warps, stages in itertools.product((32, 64, 128, 256), (32, 64, 128), (4, 8), (2, 3, 4))
]


@triton.autotune(configs=CONFIGS, key=["HEADS", "LENGTH", "DEPTH", "CAUSAL"])
@triton.jit
def flash_attention(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    scale,
    HEADS,
    LENGTH,
    DEPTH: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute BLOCK_M rows of one head; q, k, v and out have shape (HEADS, LENGTH, DEPTH)."""
    head = tl.program_id(1).to(tl.int64) * LENGTH * DEPTH
    first = tl.program_id(0) * BLOCK_M
    rows, depth, columns = first + tl.arange(0, BLOCK_M), tl.arange(0, DEPTH), tl.arange(0, BLOCK_N)
    at = head + rows[:, None] * DEPTH + depth[None, :]
    q = tl.load(q_ptr + at, mask=rows[:, None] < LENGTH, other=0.0)
    largest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    total = tl.zeros((BLOCK_M, DEPTH), tl.float32)
    end = tl.minimum(LENGTH, first + BLOCK_M) if CAUSAL else LENGTH
    for start in range(0, end, BLOCK_N):
        keys = start + columns
        k = tl.load(k_ptr + head + keys[None, :] * DEPTH + depth[:, None], mask=keys[None, :] < LENGTH, other=0.0)
        scores = tl.dot(q, k) * (scale * 1.4426950408889634)  # powers of two are faster than those of e
        seen = keys[None, :] < LENGTH
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        p = tl.exp2(scores - larger[:, None])
        kept = tl.exp2(largest - larger)
        weight = weight * kept + tl.sum(p, 1)
        v = tl.load(v_ptr + head + keys[:, None] * DEPTH + depth[None, :], mask=keys[:, None] < LENGTH, other=0.0)
        total = tl.dot(p.to(tl.float16), v, total * kept[:, None])
        largest = larger
    tl.store(out_ptr + at, (total / weight[:, None]).to(tl.float16), mask=rows[:, None] < LENGTH)


def arguments(HEADS, LENGTH, DEPTH, CAUSAL):
    """Return the grid and the arguments for sizes; HEADS are those of all sequences."""
    q, k, v = (torch.randn(HEADS, LENGTH, DEPTH, device=DEVICE, dtype=torch.float16) for _ in range(3))

    def grid(meta):
        return triton.cdiv(LENGTH, meta["BLOCK_M"]), HEADS

    return grid, q, k, v, torch.empty_like(q), DEPTH**-0.5, HEADS, LENGTH, DEPTH, bool(CAUSAL)


def outputs(_q, _k, _v, out, *_others):
    """Return what a launch writes."""
    return (out,)


def reference(q, k, v, _out, scale, _heads, _length, _depth, causal):
    """Return what it should write."""
    q, k, v = q.float(), k.float(), v.float()
    return (torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale),)


def operations(HEADS, LENGTH, DEPTH, CAUSAL):
    """Return the floating-point operations of both products of a launch."""
    return 4 * HEADS * LENGTH * LENGTH * DEPTH // (2 if CAUSAL else 1)
