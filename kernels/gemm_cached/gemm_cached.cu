// GEMM without shared memory: Nakasato, "A Fast GEMM Implementation on a Cypress GPU" (2010), with the read-only cache of CUDA in
// place of the texture cache.
//
//     C = alpha * op(A) * op(B) + beta * C        op(X) = X, X^T or X^H
//
// Column-major with leading dimensions, BLAS meaning: beta = 0 never reads C, alpha = 0 never reads A and B, m, n, k >= 0.
// A thread computes a THR_M x THR_N block of C and reads both operands through the read-only cache, THR_M and THR_N elements
// for each k. Threads lie in DIM_X x DIM_Y patches; consecutive rows belong to one thread, as in the paper.
//
// Every capital name that is not defined here is a macro: a parameter of kernel.toml, or a fact of the problem (PRECISION 0 to
// 3 for S, D, C, Z; TRANS_A, TRANS_B; CONJ_A, CONJ_B).

#if PRECISION == 0 || PRECISION == 2
typedef float Real;
#else
typedef double Real;
#endif

#if PRECISION < 2
typedef Real T;
__device__ __forceinline__ bool is_zero(T value) { return value == Real(0); }
__device__ __forceinline__ T times(T a, T b) { return a * b; }
__device__ __forceinline__ T plus(T a, T b) { return a + b; }
__device__ __forceinline__ void add_product(T& sum, T a, T b) { sum += a * b; }
#else
struct alignas(2 * sizeof(Real)) T { Real x, y; };
__device__ __forceinline__ bool is_zero(T value) { return value.x == Real(0) && value.y == Real(0); }
__device__ __forceinline__ T times(T a, T b) { return T{a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x}; }
__device__ __forceinline__ T plus(T a, T b) { return T{a.x + b.x, a.y + b.y}; }
__device__ __forceinline__ void add_product(T& sum, T a, T b) {
  const Real ay = CONJ_A ? -a.y : a.y, by = CONJ_B ? -b.y : b.y;
  sum.x += a.x * b.x;
  sum.x -= ay * by;
  sum.y += a.x * by;
  sum.y += ay * b.x;
}
#endif

// The element of op(A) in row i and column l, and of op(B) in row l and column j; conjugated where they are multiplied.
__device__ __forceinline__ const T* of_a(const T* A, long long lda, long long i, long long l) {
  return TRANS_A ? A + l + i * lda : A + i + l * lda;
}
__device__ __forceinline__ const T* of_b(const T* B, long long ldb, long long l, long long j) {
  return TRANS_B ? B + j + l * ldb : B + l + j * ldb;
}

// beta = 0 never reads C.
__device__ __forceinline__ void store(T* to, T alpha, T sum, T beta) {
  const T value = times(alpha, sum);
  *to = is_zero(beta) ? value : plus(value, times(beta, *to));
}

#ifndef MLTUNE_HOST
__device__ __forceinline__ T load_cached(const T* from) { return __ldg(from); }
#else
inline T load_cached(const T* from) { return *from; }
#endif

extern "C" __global__ void __launch_bounds__(DIM_X * DIM_Y, MIN_BLOCKS)
gemm(long long m, long long n, long long k, T alpha, const T* A, long long lda, const T* B, long long ldb, T beta, T* C,
     long long ldc) {
  constexpr int BLK_M = DIM_X * THR_M, BLK_N = DIM_Y * THR_N;
  const int x = threadIdx.x % DIM_X, y = threadIdx.x / DIM_X;
  const long long tiles_m = (m + BLK_M - 1) / BLK_M;
  const long long i0 = blockIdx.x % tiles_m * BLK_M + x * THR_M, j0 = blockIdx.x / tiles_m * BLK_N + y * THR_N;
  if (i0 >= m || j0 >= n) return;
  const long long depth = is_zero(alpha) ? 0 : k;

  T sum[THR_M][THR_N];
#pragma unroll
  for (int i = 0; i < THR_M; i++)
#pragma unroll
    for (int j = 0; j < THR_N; j++) sum[i][j] = T{};

  // Rows and columns beyond C repeat the last ones, and are not stored.
#pragma unroll UNROLL_K
  for (long long l = 0; l < depth; l++) {
    T a[THR_M], b[THR_N];
#pragma unroll
    for (int i = 0; i < THR_M; i++) a[i] = load_cached(of_a(A, lda, min(i0 + i, m - 1), l));
#pragma unroll
    for (int j = 0; j < THR_N; j++) b[j] = load_cached(of_b(B, ldb, l, min(j0 + j, n - 1)));
#pragma unroll
    for (int i = 0; i < THR_M; i++)
#pragma unroll
      for (int j = 0; j < THR_N; j++) add_product(sum[i][j], a[i], b[j]);
  }

#pragma unroll
  for (int j = 0; j < THR_N; j++)
#pragma unroll
    for (int i = 0; i < THR_M; i++)
      if (i0 + i < m && j0 + j < n) store(C + i0 + i + (j0 + j) * ldc, alpha, sum[i][j], beta);
}
