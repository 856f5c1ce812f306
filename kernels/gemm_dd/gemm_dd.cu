// GEMM in double-double arithmetic: an element is the unevaluated sum of two doubles, about 32 decimal digits.
//
//     C = alpha * op(A) * op(B) + beta * C        op(X) = X or X^T
//
// Column-major with leading dimensions, BLAS meaning: beta = 0 never reads C, alpha = 0 never reads A and B, m, n, k >= 0.
// A block of DIM_X x DIM_Y threads computes a BLK_M x BLK_N tile of C, BLK_K steps of k at a time, through shared memory:
//
//     global --cp.async--> shared --fragments--> registers --multiply--> accumulators --store--> global
//
// An element has 16 bytes, so every copy is of 16 bytes, and an operand lies in shared memory as in global memory.
//
// A multiply-add takes 12 instructions: the product and its error (4; Dekker 1971, with FMA), the sum of the high parts and its
// error (6; Knuth, TwoSum), and both errors added to the low part (2). The low part is carried into the high one (3 more) only
// every RENORMALISE steps: until then it is a plain sum of at most as many errors, each of half a unit of the high part.
//
// Every capital name that is not defined here is a macro: a parameter of kernel.toml, or a fact of the problem (TRANS_A, TRANS_B).

struct alignas(16) T { double hi, lo; };

constexpr int WARP = 32;
constexpr int THREADS = DIM_X * DIM_Y;
constexpr int THR_M = BLK_M / DIM_X;
constexpr int THR_N = BLK_N / DIM_Y;
constexpr bool A_ALONG_K = TRANS_A == 1;  // k is the fast index
constexpr bool B_ALONG_K = TRANS_B == 0;

// ---- What the hardware does, in one place: an emulator on the host supplies its own.
#ifndef MLTUNE_HOST

template <int BYTES>
__device__ __forceinline__ void cp_async_or_zero(void* shared, const void* global, bool valid) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? BYTES : 0;  // what is not read is filled with zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(global), "n"(BYTES), "r"(bytes) : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// Rounded once each: the compiler must not contract them.
__device__ __forceinline__ double plus(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ double minus(double a, double b) { return __dadd_rn(a, -b); }
__device__ __forceinline__ double times(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ double fused(double a, double b, double c) { return __fma_rn(a, b, c); }

#endif

// ---- Double-double.

// The error of a + b whose rounded sum is `sum` (Knuth, The Art of Computer Programming 2, section 4.2.2).
__device__ __forceinline__ double sum_error(double a, double b, double sum) {
  const double part = minus(sum, a);
  return plus(minus(a, minus(sum, part)), minus(b, part));
}

// hi + lo with |lo| at most half a unit of hi, where |hi| >= |lo| (Dekker).
__device__ __forceinline__ T carried(double hi, double lo) {
  const double sum = plus(hi, lo);
  return {sum, minus(lo, minus(sum, hi))};
}

__device__ __forceinline__ void multiply_add(T& sum, const T& a, const T& b) {
  const double product = times(a.hi, b.hi);
  const double rest = fused(a.lo, b.hi, fused(a.hi, b.lo, fused(a.hi, b.hi, -product)));
  const double hi = plus(sum.hi, product);
  sum.lo = plus(sum.lo, plus(sum_error(sum.hi, product, hi), rest));
  sum.hi = hi;
}

__device__ __forceinline__ T product(const T& a, const T& b) {
  const double high = times(a.hi, b.hi);
  return carried(high, fused(a.lo, b.hi, fused(a.hi, b.lo, fused(a.hi, b.hi, -high))));
}

__device__ __forceinline__ T total(const T& a, const T& b) {
  const double hi = plus(a.hi, b.hi), lo = plus(a.lo, b.lo);
  const T high = carried(hi, plus(sum_error(a.hi, b.hi, hi), lo));
  return carried(high.hi, plus(high.lo, sum_error(a.lo, b.lo, lo)));
}

__device__ __forceinline__ bool is_zero(const T& value) { return value.hi == 0 && value.lo == 0; }

// ---- Copies from global to shared memory, one operand each.

// One operand of the product. SPAN is the tile's extent along the index that is contiguous in memory, LINES its extent along
// the other; DIM_S threads read along a line. What lies outside the matrix is zero.
template <bool ALONG_K, int BLK, int PAD, int DIM_S>
struct Operand {
  static constexpr int SPAN = ALONG_K ? BLK_K : BLK;
  static constexpr int LINES = ALONG_K ? BLK : BLK_K;
  static constexpr int ROW = SPAN + PAD;
  static constexpr int STAGE = LINES * ROW;
  static constexpr int DIM_L = THREADS / DIM_S;
  static_assert(SPAN % DIM_S == 0 && LINES % DIM_L == 0, "the load shape divides the tile");

  const T* next;     // this thread's first element of the tile to fetch
  const T* matrix;   // always readable: what is not copied needs an address as well
  T* shared;
  long long ld, span, lines;  // elements from this thread's first one to the matrix's end, along a line and across

  __device__ __forceinline__ Operand(const T* matrix_, long long ld_, long long start, long long end, long long k, T* shared_)
      : matrix(matrix_), ld(ld_) {
    const int s = threadIdx.x % DIM_S, l = threadIdx.x / DIM_S;
    next = matrix_ + (ALONG_K ? start * ld_ : start) + s + l * ld_;
    span = (ALONG_K ? k : end - start) - s;
    lines = (ALONG_K ? end - start : k) - l;
    shared = shared_ + s + l * ROW;
  }

  __device__ __forceinline__ void fetch(int stage) {
#pragma unroll
    for (int i = 0; i < LINES / DIM_L; i++)
#pragma unroll
      for (int j = 0; j < SPAN / DIM_S; j++) {
        const bool valid = j * DIM_S < span && i * DIM_L < lines;
        cp_async_or_zero<16>(shared + stage * STAGE + i * DIM_L * ROW + j * DIM_S,
                             valid ? next + i * DIM_L * ld + j * DIM_S : matrix, valid);
      }
    next += BLK_K * (ALONG_K ? 1 : ld);
    (ALONG_K ? span : lines) -= BLK_K;
  }

  // Place of a row or column `index` at depth k in a stage.
  static __device__ __forceinline__ int place(int index, int k) { return ALONG_K ? index * ROW + k : k * ROW + index; }
};

typedef Operand<A_ALONG_K, BLK_M, PAD_A, DIM_XA> OperandA;
typedef Operand<B_ALONG_K, BLK_N, PAD_B, DIM_XB> OperandB;

// ---- The kernel.

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
gemm(long long m, long long n, long long k, T alpha, const T* A, long long lda, const T* B, long long ldb, T beta, T* C,
     long long ldc, int raster_group) {
  extern __shared__ __align__(16) unsigned char shared_storage[];
  T* const shared_a = reinterpret_cast<T*>(shared_storage);
  T* const shared_b = shared_a + STAGES * OperandA::STAGE;
  const int tx = threadIdx.x % DIM_X, ty = threadIdx.x / DIM_X;

  // Blocks run down groups of raster_group tile rows, column by column, so that a wave of blocks covers a compact patch of C.
  const int tiles_m = static_cast<int>((m + BLK_M - 1) / BLK_M), tiles_n = static_cast<int>((n + BLK_N - 1) / BLK_N);
  const long long group_tiles = static_cast<long long>(raster_group) * tiles_n;
  const int group = static_cast<int>(blockIdx.x / group_tiles), within = static_cast<int>(blockIdx.x % group_tiles);
  const int height = min(raster_group, tiles_m - group * raster_group);
  const long long block_m = static_cast<long long>(group * raster_group + within % height) * BLK_M;
  const long long block_n = static_cast<long long>(within / height) * BLK_N;

  const long long depth = is_zero(alpha) ? 0 : k;
  const int tiles = static_cast<int>((depth + BLK_K - 1) / BLK_K);
  OperandA a(A, lda, block_m, m, depth, shared_a);
  OperandB b(B, ldb, block_n, n, depth, shared_b);
  const T* const from_a = shared_a + OperandA::place(tx, 0);
  const T* const from_b = shared_b + OperandB::place(ty, 0);

  T sum[THR_M][THR_N];
#pragma unroll
  for (int i = 0; i < THR_M; i++)
#pragma unroll
    for (int j = 0; j < THR_N; j++) sum[i][j] = {0, 0};

  int fetched = 0, writing = 0, reading = 0;
  auto fetch = [&] {
    if (fetched < tiles) {
      a.fetch(writing);
      b.fetch(writing);
    }
    cp_async_commit();
    fetched++;
    writing = writing == STAGES - 1 ? 0 : writing + 1;
  };
#pragma unroll 1
  for (int stage = 0; stage < STAGES - 1; stage++) fetch();
#pragma unroll 1
  for (int tile = 0; tile < tiles; tile++) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();  // the tile is complete for all, and all have left the stage to write
    fetch();
    const T* const tile_a = from_a + reading * OperandA::STAGE;
    const T* const tile_b = from_b + reading * OperandB::STAGE;
    reading = reading == STAGES - 1 ? 0 : reading + 1;
#pragma unroll 1
    for (int k0 = 0; k0 < BLK_K; k0 += RENORMALISE) {
#pragma unroll
      for (int u = 0; u < RENORMALISE; u++) {
        T fa[THR_M], fb[THR_N];
#pragma unroll
        for (int i = 0; i < THR_M; i++) fa[i] = tile_a[OperandA::place(i * DIM_X, k0 + u)];
#pragma unroll
        for (int j = 0; j < THR_N; j++) fb[j] = tile_b[OperandB::place(j * DIM_Y, k0 + u)];
#pragma unroll
        for (int i = 0; i < THR_M; i++)
#pragma unroll
          for (int j = 0; j < THR_N; j++) multiply_add(sum[i][j], fa[i], fb[j]);
      }
#pragma unroll
      for (int i = 0; i < THR_M; i++)
#pragma unroll
        for (int j = 0; j < THR_N; j++) sum[i][j] = carried(sum[i][j].hi, sum[i][j].lo);
    }
  }

  const bool reads = !is_zero(beta);
#pragma unroll
  for (int j = 0; j < THR_N; j++)
#pragma unroll
    for (int i = 0; i < THR_M; i++) {
      const long long row = block_m + tx + i * DIM_X, column = block_n + ty + j * DIM_Y;
      if (row < m && column < n) {
        T& to = C[row + column * ldc];
        const T value = product(alpha, sum[i][j]);
        to = reads ? total(value, product(beta, to)) : value;
      }
    }
}
