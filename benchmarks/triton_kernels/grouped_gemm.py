"""Products of groups of rows with a matrix each, in FP16: a fixed number of programs takes the blocks in turns."""

import itertools

import torch
import triton
import triton.language as tl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = ({"GROUPS": 16, "M": 8192, "N": 4096, "K": 4096}, {"GROUPS": 32, "M": 4096, "N": 2048, "K": 1024})
SMALL = ({"GROUPS": 3, "M": 200, "N": 128, "K": 64}, {"GROUPS": 4, "M": 50, "N": 70, "K": 40})

CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "PROGRAMS": programs}, num_warps=warps, num_stages=stages)
    for m, n, k, programs, warps, stages in itertools.product(
        (64, 128), (64, 128, 256), (32, 64), (132, 264), (4, 8), (3, 4)
    )
]


@triton.autotune(configs=CONFIGS, key=["GROUPS", "M", "N", "K"])
@triton.jit
def grouped_gemm(
    a_ptr,
    b_ptr,
    c_ptr,
    starts_ptr,
    GROUPS,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Compute C[rows of g] = A[rows of g] B[g]: those of group g begin at starts[g]; M are the rows of all."""
    block = tl.program_id(0)
    before = 0  # blocks of the groups before
    blocks_n = tl.cdiv(N, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    for group in range(GROUPS):
        start, end = tl.load(starts_ptr + group), tl.load(starts_ptr + group + 1)
        blocks = tl.cdiv(end - start, BLOCK_M) * blocks_n
        while block < before + blocks:
            rows = start + (block - before) // blocks_n * BLOCK_M + tl.arange(0, BLOCK_M)
            columns = (block - before) % blocks_n * BLOCK_N + tl.arange(0, BLOCK_N)
            a = a_ptr + tl.minimum(rows, end - 1)[:, None] * K + inner[None, :]
            b = b_ptr + inner[:, None] * N + (columns % N)[None, :]
            total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for done in range(0, K, BLOCK_K):
                left = tl.load(a, mask=inner[None, :] < K - done, other=0.0)
                right = tl.load(b, mask=inner[:, None] < K - done, other=0.0)
                total = tl.dot(left, right, total)
                a += BLOCK_K
                b += BLOCK_K * N
            inside = (rows[:, None] < end) & (columns[None, :] < N)
            tl.store(c_ptr + rows[:, None] * N + columns[None, :], total.to(tl.float16), mask=inside)
            block += PROGRAMS
        before += blocks
        b_ptr += K * N


def arguments(GROUPS, M, N, K):
    """Return the grid and the arguments for sizes: group g has about g + 1 of GROUPS (GROUPS + 1) / 2 shares of M."""
    a = torch.randn(M, K, device=DEVICE, dtype=torch.float16)
    b = torch.randn(GROUPS, K, N, device=DEVICE, dtype=torch.float16)
    c = torch.empty(M, N, device=DEVICE, dtype=torch.float16)
    shares = torch.arange(GROUPS + 1).cumsum(0)
    starts = (shares * M // shares[-1]).to(torch.int32).to(DEVICE)
    return lambda meta: (meta["PROGRAMS"],), a, b, c, starts, GROUPS, M, N, K


def outputs(_a, _b, c, *_others):
    """Return what a launch writes."""
    return (c,)


def reference(a, b, _c, starts, *_sizes):
    """Return what it should write."""
    sizes = starts.diff().tolist()
    return (torch.cat([rows.float() @ one.float() for rows, one in zip(a.split(sizes), b, strict=True)]),)


def operations(GROUPS, M, N, K):
    """Return the floating-point operations of a launch."""
    return 2 * M * N * K
