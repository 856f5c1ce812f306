// GEMM of strips: the kernels K1 to K4 of Wolfe, "Compilers and More: Optimizing GPU Kernels" (HPCwire, 2008).
//
//     C = alpha * op(A) * op(B) + beta * C        op(X) = X, X^T or X^H
//
// Column-major with leading dimensions, BLAS meaning: beta = 0 never reads C, alpha = 0 never reads A and B, m, n, k >= 0.
// A block of WIDTH threads (Wolfe's SIMD width, his strip-mined loop over i) computes WIDTH * UNROLL_I rows of UNROLL_J columns of
// C. K1 reads op(B) from global memory (STRIP = 0), K2 and K3 cache strips of STRIP elements of its columns in shared memory, K4
// unrolls the loops over j, i and k.
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

extern "C" __global__ void __launch_bounds__(WIDTH)
gemm(long long m, long long n, long long k, T alpha, const T* A, long long lda, const T* B, long long ldb, T beta, T* C,
     long long ldc) {
  extern __shared__ __align__(16) unsigned char shared_storage[];
  T* const strip = reinterpret_cast<T*>(shared_storage);  // [UNROLL_J][STRIP]
  constexpr int ROWS = WIDTH * UNROLL_I;
  const int thread = threadIdx.x;
  const long long tiles_m = (m + ROWS - 1) / ROWS;
  const long long i0 = blockIdx.x % tiles_m * ROWS + thread, j0 = blockIdx.x / tiles_m * UNROLL_J;
  const long long depth = is_zero(alpha) ? 0 : k;

  T sum[UNROLL_I][UNROLL_J];
#pragma unroll
  for (int i = 0; i < UNROLL_I; i++)
#pragma unroll
    for (int j = 0; j < UNROLL_J; j++) sum[i][j] = T{};

  // Rows and columns beyond C repeat the last ones, and are not stored.
  auto row = [&](int i) { return min(i0 + i * WIDTH, m - 1); };
  auto column = [&](int j) { return min(j0 + j, n - 1); };
  auto multiply = [&](long long l, auto b) {
    T a[UNROLL_I];
#pragma unroll
    for (int i = 0; i < UNROLL_I; i++) a[i] = *of_a(A, lda, row(i), l);
#pragma unroll
    for (int j = 0; j < UNROLL_J; j++) {
      const T value = b(j);
#pragma unroll
      for (int i = 0; i < UNROLL_I; i++) add_product(sum[i][j], a[i], value);
    }
  };

#if STRIP == 0
#pragma unroll UNROLL_K
  for (long long l = 0; l < depth; l++) multiply(l, [&](int j) { return *of_b(B, ldb, l, column(j)); });
#else
  for (long long l0 = 0; l0 < depth; l0 += STRIP) {
    const int length = static_cast<int>(min(depth - l0, static_cast<long long>(STRIP)));
    __syncthreads();  // the last strip is no longer needed
    for (int e = thread; e < STRIP * UNROLL_J; e += WIDTH) {
      const int l = TRANS_B ? e / UNROLL_J : e % STRIP, j = TRANS_B ? e % UNROLL_J : e / STRIP;
      if (l < length) strip[j * STRIP + l] = *of_b(B, ldb, l0 + l, column(j));
    }
    __syncthreads();
    auto part = [&](int l) { multiply(l0 + l, [&](int j) { return strip[j * STRIP + l]; }); };
    if (length == STRIP) {
#pragma unroll UNROLL_K
      for (int l = 0; l < STRIP; l++) part(l);
    } else {
      for (int l = 0; l < length; l++) part(l);
    }
  }
#endif

#pragma unroll
  for (int j = 0; j < UNROLL_J; j++)
#pragma unroll
    for (int i = 0; i < UNROLL_I; i++)
      if (i0 + i * WIDTH < m && j0 + j < n) store(C + i0 + i * WIDTH + (j0 + j) * ldc, alpha, sum[i][j], beta);
}
