// GEMM with one thread for each element of C and no reuse but that of the caches: the first kernel of CSE 260 (2014).
//
//     C = alpha * op(A) * op(B) + beta * C        op(X) = X, X^T or X^H
//
// Column-major with leading dimensions, BLAS meaning: beta = 0 never reads C, alpha = 0 never reads A and B, m, n, k >= 0.
// The threads of a block form a DIM_X x DIM_Y patch of C; only its shape is tuned. x runs along m, or along n (ACROSS), where
// neighbouring threads read and write with a stride.
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

extern "C" __global__ void __launch_bounds__(DIM_X * DIM_Y)
gemm(long long m, long long n, long long k, T alpha, const T* A, long long lda, const T* B, long long ldb, T beta, T* C,
     long long ldc) {
  constexpr int ROWS = ACROSS ? DIM_Y : DIM_X, COLUMNS = ACROSS ? DIM_X : DIM_Y;
  const int x = threadIdx.x % DIM_X, y = threadIdx.x / DIM_X;
  const long long tiles_m = (m + ROWS - 1) / ROWS;
  const long long i = blockIdx.x % tiles_m * ROWS + (ACROSS ? y : x);
  const long long j = blockIdx.x / tiles_m * COLUMNS + (ACROSS ? x : y);
  if (i >= m || j >= n) return;
  T sum = T{};
  const long long depth = is_zero(alpha) ? 0 : k;
#pragma unroll UNROLL_K
  for (long long l = 0; l < depth; l++) add_product(sum, *of_a(A, lda, i, l), *of_b(B, ldb, l, j));
  store(C + i + j * ldc, alpha, sum, beta);
}
