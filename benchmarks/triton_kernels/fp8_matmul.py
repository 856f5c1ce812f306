"""C = A B^T of FP8 with a scale for 128 elements of a row of A, and for each block of 128 x 128 of B; C in BF16.

The names of the meta-parameters are those of vLLM's and SGLang's configuration files for such products.
"""

import itertools

import torch
import triton
import triton.language as tl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BLOCK = 128
"""Elements of a row, or rows and elements, that share a scale."""
LARGEST = 448.0
"""The largest number of FP8 (E4M3)."""
SERVING = {"dtype": "fp8_w8a8", "block_shape": [BLOCK, BLOCK]}
"""What files of configurations for vLLM and SGLang say of the operands."""
SIZES = ({"M": 4096, "N": 4096, "K": 7168}, {"M": 64, "N": 7168, "K": 2048})
SMALL = ({"M": 128, "N": 256, "K": 256}, {"M": 20, "N": 200, "K": 384})

CONFIGS = [
    triton.Config(
        {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": group},
        num_warps=warps,
        num_stages=stages,
    )
    for m, n, k, group, warps, stages in itertools.product((16, 64, 128), (64, 128), (64, 128), (1, 16), (4, 8), (3, 4))
]


@triton.autotune(configs=CONFIGS, key=["M", "N", "K"])
@triton.jit
def fp8_matmul(
    a_ptr,
    b_ptr,
    c_ptr,
    a_scale_ptr,
    b_scale_ptr,
    M,
    N,
    K,
    BLOCK: tl.constexpr,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr,
):
    """Compute one block of C; K is a multiple of BLOCK, and BLOCK one of BLOCK_SIZE_K."""
    blocks_m, blocks_n = tl.cdiv(M, BLOCK_SIZE_M), tl.cdiv(N, BLOCK_SIZE_N)
    group = tl.program_id(0) // (GROUP_SIZE_M * blocks_n)
    in_group = tl.program_id(0) % (GROUP_SIZE_M * blocks_n)
    height = tl.minimum(blocks_m - group * GROUP_SIZE_M, GROUP_SIZE_M)
    rows = (group * GROUP_SIZE_M + in_group % height) * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    columns = (in_group // height) * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    inner = tl.arange(0, BLOCK_SIZE_K)
    a = a_ptr + (rows % M)[:, None] * K + inner[None, :]
    b = b_ptr + (columns % N)[None, :] * K + inner[:, None]
    scales = K // BLOCK
    a_scale = a_scale_ptr + (rows % M) * scales
    b_scale = b_scale_ptr + (columns % N) // BLOCK * scales
    total = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), tl.float32)
    for done in range(0, K, BLOCK_SIZE_K):
        part = tl.dot(tl.load(a), tl.load(b))
        at = done // BLOCK
        total += part * tl.load(a_scale + at)[:, None] * tl.load(b_scale + at)[None, :]
        a += BLOCK_SIZE_K
        b += BLOCK_SIZE_K
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], total.to(tl.bfloat16), mask=inside)


def arguments(M, N, K):
    """Return the grid and the arguments for sizes; K is a multiple of 128."""
    a, b = (torch.randn(rows, K, device=DEVICE).to(torch.float8_e4m3fn) for rows in (M, N))
    a_scale = torch.rand(M, K // BLOCK, device=DEVICE) / LARGEST
    b_scale = torch.rand(triton.cdiv(N, BLOCK), K // BLOCK, device=DEVICE) / LARGEST
    c = torch.empty(M, N, device=DEVICE, dtype=torch.bfloat16)

    def grid(meta):
        return (triton.cdiv(M, meta["BLOCK_SIZE_M"]) * triton.cdiv(N, meta["BLOCK_SIZE_N"]),)

    return grid, a, b, c, a_scale, b_scale, M, N, K, BLOCK


def outputs(_a, _b, c, *_others):
    """Return what a launch writes."""
    return (c,)


def reference(a, b, _c, a_scale, b_scale, _m, n, _k, block):
    """Return what it should write."""
    a = a.float() * a_scale.repeat_interleave(block, 1)
    b = b.float() * b_scale.repeat_interleave(block, 0)[:n].repeat_interleave(block, 1)
    return (a @ b.T,)


def operations(M, N, K):
    """Return the floating-point operations of a launch."""
    return 2 * M * N * K
