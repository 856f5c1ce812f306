"""The two products of a mixture of experts in FP16: each token's row with the matrices of its experts.

The names of the meta-parameters, the layout of the operands and the order of the tokens are those of vLLM, which reads
the best configuration for each number of tokens from a file; both products have the same one.
"""

import itertools

import torch
import triton
import triton.language as tl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BLOCKS_M = (16, 32, 64, 128)
SIZES = (
    {"M": 2048, "E": 8, "N": 14336, "K": 4096, "TOP_K": 2},
    {"M": 16, "E": 8, "N": 14336, "K": 4096, "TOP_K": 2},
)
SMALL = ({"M": 50, "E": 4, "N": 64, "K": 64, "TOP_K": 2}, {"M": 3, "E": 8, "N": 96, "K": 80, "TOP_K": 2})

CONFIGS = [
    triton.Config(
        {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": group},
        num_warps=warps,
        num_stages=stages,
    )
    for m, n, k, group, warps, stages in itertools.product(BLOCKS_M, (64, 128, 256), (64, 128), (1, 16), (4, 8), (3, 4))
    if n * k <= 128 * 128 and (m > 16 or n < 256) and (m * n <= 128 * 128 or warps == 8)
]


@triton.autotune(configs=CONFIGS, key=["N", "K", "TOKENS"])
@triton.jit
def fused_moe(
    a_ptr,
    b_ptr,
    c_ptr,
    weights_ptr,
    order_ptr,
    experts_ptr,
    padded_ptr,
    stride,
    N,
    K,
    TOKENS,
    TOP_K: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr,
):
    """Compute one block of C[t] = A[t // TOP_K] B[expert of t]^T, times the weight of t where WEIGHTED.

    ``order`` has the TOKENS pairs of a token and an expert by expert, those of an expert padded to a multiple of
    BLOCK_SIZE_M with TOKENS, ``experts`` the expert of each block, and ``padded`` the length of ``order``: one row of
    each for each BLOCK_SIZE_M, with a distance of ``stride``.
    """
    row: tl.constexpr = BLOCK_SIZE_M // 32
    padded = tl.load(padded_ptr + row)
    blocks_m, blocks_n = tl.cdiv(padded, BLOCK_SIZE_M), tl.cdiv(N, BLOCK_SIZE_N)
    group = tl.program_id(0) // (GROUP_SIZE_M * blocks_n)
    in_group = tl.program_id(0) % (GROUP_SIZE_M * blocks_n)
    height = tl.minimum(blocks_m - group * GROUP_SIZE_M, GROUP_SIZE_M)
    if tl.program_id(0) >= blocks_m * blocks_n:
        return
    block = group * GROUP_SIZE_M + in_group % height
    tokens = tl.load(order_ptr + row * stride + block * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M))
    expert = tl.load(experts_ptr + row * stride + block).to(tl.int64)
    columns = (in_group // height) * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    inner = tl.arange(0, BLOCK_SIZE_K)
    known = tokens < TOKENS
    a = a_ptr + (tokens // TOP_K)[:, None] * K + inner[None, :]
    b = b_ptr + expert * N * K + (columns % N)[None, :] * K + inner[:, None]
    total = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), tl.float32)
    for done in range(0, K, BLOCK_SIZE_K):
        left = tl.load(a, mask=known[:, None] & (inner[None, :] < K - done), other=0.0)
        right = tl.load(b, mask=inner[:, None] < K - done, other=0.0)
        total = tl.dot(left, right, total)
        a += BLOCK_SIZE_K
        b += BLOCK_SIZE_K
    if WEIGHTED:
        total *= tl.load(weights_ptr + tokens, mask=known, other=0.0)[:, None]
    inside = known[:, None] & (columns[None, :] < N)
    tl.store(c_ptr + tokens[:, None] * N + columns[None, :], total.to(tl.float16), mask=inside)


def arguments(M, E, N, K, TOP_K):
    """Return both launches for M tokens, E experts with N inner elements, rows of K elements, TOP_K experts a token."""
    x = torch.randn(M, K, device=DEVICE, dtype=torch.float16)
    h = torch.randn(M * TOP_K, N, device=DEVICE, dtype=torch.float16)
    w1 = torch.randn(E, 2 * N, K, device=DEVICE, dtype=torch.float16)
    w2 = torch.randn(E, K, N, device=DEVICE, dtype=torch.float16)
    y1 = torch.empty(M * TOP_K, 2 * N, device=DEVICE, dtype=torch.float16)
    y2 = torch.empty(M * TOP_K, K, device=DEVICE, dtype=torch.float16)
    weights, chosen = torch.rand(M, E, device=DEVICE).softmax(1).topk(TOP_K, 1)
    tables = aligned(chosen.flatten(), E)
    routing = weights.flatten().contiguous(), *tables, tables[0].shape[1]

    def grid(columns):
        def blocks(meta):
            # an expert has at least one token in each of its blocks
            most = min(M * TOP_K, M * TOP_K // meta["BLOCK_SIZE_M"] + E)
            return (most * triton.cdiv(columns, meta["BLOCK_SIZE_N"]),)

        return blocks

    return [
        (grid(2 * N), x, w1, y1, *routing, 2 * N, K, M * TOP_K, TOP_K, False),
        (grid(K), h, w2, y2, *routing, K, N, M * TOP_K, 1, True),
    ]


def aligned(chosen, experts):
    """Return order, experts and lengths for each BLOCK_SIZE_M, in row BLOCK_SIZE_M // 32."""
    count = len(chosen)
    by_expert = chosen.argsort(stable=True)
    sizes = torch.bincount(chosen, minlength=experts)
    length = count + experts * max(BLOCKS_M)
    order = torch.full((max(BLOCKS_M) // 32 + 1, length), count, dtype=torch.int32, device=chosen.device)
    of_blocks = torch.zeros_like(order)
    padded = torch.zeros(len(order), dtype=torch.int32, device=chosen.device)
    for block in BLOCKS_M:
        blocks = (sizes + block - 1) // block
        starts = (blocks.cumsum(0) - blocks) * block - (sizes.cumsum(0) - sizes)  # what padding moves an expert by
        places = torch.arange(count, device=chosen.device) + starts[chosen[by_expert]]
        order[block // 32, places] = by_expert.to(torch.int32)
        ids = torch.arange(experts, dtype=torch.int32, device=chosen.device).repeat_interleave(blocks)
        of_blocks[block // 32, : len(ids)] = ids
        padded[block // 32] = block * len(ids)
    return order, of_blocks, padded


def outputs(_a, _b, c, *_others):
    """Return what a launch writes."""
    return (c,)


def reference(a, b, _c, weights, order, experts, padded, _stride, _n, _k, tokens, top_k, weighted):
    """Return what it should write."""
    order, experts = order[0, : padded[0]].long(), experts[0].repeat_interleave(16)[: padded[0]].long()
    known = order < tokens
    order, experts = order[known], experts[known]
    c = torch.empty(tokens, b.shape[1], device=a.device)
    for expert in range(len(b)):
        mine = order[experts == expert]
        c[mine] = a[mine // top_k].float() @ b[expert].float().T
    return (c * weights[:, None] if weighted else c,)


def operations(M, E, N, K, TOP_K):
    """Return the floating-point operations of both launches."""
    return 2 * M * TOP_K * 3 * N * K
