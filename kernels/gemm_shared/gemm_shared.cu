// GEMM through shared memory: the kernel K5 of Wolfe (HPCwire, 2008), and those of CSE 260 (2014) with 1 to 16 outputs a thread.
//
//     C = alpha * op(A) * op(B) + beta * C        op(X) = X, X^T or X^H
//
// Column-major with leading dimensions, BLAS meaning: beta = 0 never reads C, alpha = 0 never reads A and B, m, n, k >= 0.
// A block of DIM_X x DIM_Y threads computes a BLK_M x BLK_N tile of C. Tiles of op(A) and op(B), BLK_K deep, lie in shared memory
// between two barriers; beyond the matrices they are zero. The outputs of a thread are DIM_X and DIM_Y apart.
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
  extern __shared__ __align__(16) unsigned char shared_storage[];
  constexpr int THREADS = DIM_X * DIM_Y, THR_M = BLK_M / DIM_X, THR_N = BLK_N / DIM_Y;
  constexpr int ROW_A = BLK_M + PAD, ROW_B = BLK_N + PAD;
  T* const shared_a = reinterpret_cast<T*>(shared_storage);  // [BLK_K][ROW_A]
  T* const shared_b = shared_a + BLK_K * ROW_A;              // [BLK_K][ROW_B]
  const int thread = threadIdx.x, x = thread % DIM_X, y = thread / DIM_X;
  const long long tiles_m = (m + BLK_M - 1) / BLK_M;
  const long long i0 = blockIdx.x % tiles_m * BLK_M, j0 = blockIdx.x / tiles_m * BLK_N;
  const long long depth = is_zero(alpha) ? 0 : k;

  T sum[THR_M][THR_N];
#pragma unroll
  for (int i = 0; i < THR_M; i++)
#pragma unroll
    for (int j = 0; j < THR_N; j++) sum[i][j] = T{};

  for (long long l0 = 0; l0 < depth; l0 += BLK_K) {
    for (int e = thread; e < BLK_M * BLK_K; e += THREADS) {  // neighbouring threads read neighbouring elements
      const int i = TRANS_A ? e / BLK_K : e % BLK_M, l = TRANS_A ? e % BLK_K : e / BLK_M;
      shared_a[l * ROW_A + i] = i0 + i < m && l0 + l < depth ? *of_a(A, lda, i0 + i, l0 + l) : T{};
    }
    for (int e = thread; e < BLK_N * BLK_K; e += THREADS) {
      const int j = TRANS_B ? e % BLK_N : e / BLK_K, l = TRANS_B ? e / BLK_N : e % BLK_K;
      shared_b[l * ROW_B + j] = j0 + j < n && l0 + l < depth ? *of_b(B, ldb, l0 + l, j0 + j) : T{};
    }
    __syncthreads();
#pragma unroll UNROLL_K
    for (int l = 0; l < BLK_K; l++) {
      T a[THR_M], b[THR_N];
#pragma unroll
      for (int i = 0; i < THR_M; i++) a[i] = shared_a[l * ROW_A + x + i * DIM_X];
#pragma unroll
      for (int j = 0; j < THR_N; j++) b[j] = shared_b[l * ROW_B + y + j * DIM_Y];
#pragma unroll
      for (int i = 0; i < THR_M; i++)
#pragma unroll
        for (int j = 0; j < THR_N; j++) add_product(sum[i][j], a[i], b[j]);
    }
    __syncthreads();
  }

#pragma unroll
  for (int j = 0; j < THR_N; j++)
#pragma unroll
    for (int i = 0; i < THR_M; i++) {
      const long long row = i0 + x + i * DIM_X, column = j0 + y + j * DIM_Y;
      if (row < m && column < n) store(C + row + column * ldc, alpha, sum[i][j], beta);
    }
}
