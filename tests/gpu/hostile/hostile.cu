// A plain GEMM, one thread per element of C, with a misdeed for every state that a trial can end in.
//
//  0 none                          8 reads C although beta is 0
//  1 never ends                    9 one unit in the last place off
//  2 writes far outside C         10 too many threads in a block (kernel.toml)
//  3 traps                        11 misaligned access
//  4 too much shared memory       12 leaves C alone
//  5 forgets the last step of k   13 writes into the padding of C
//  6 one NaN                      14 fails an assertion
//  7 writes just behind C         15 does not compile
//                                 16 writes into A, where it is large

#if MISDEED == 15
#error "this configuration does not compile"
#endif

#if PRECISION == 0 || PRECISION == 2
typedef float Real;
#else
typedef double Real;
#endif

#if PRECISION < 2
typedef Real T;
__device__ T multiply_add(T a, T b, T c) { return a * b + c; }
__device__ T conjugate(T a) { return a; }
__device__ T number(Real value) { return value; }
__device__ bool is_zero(T a) { return a == 0; }
__device__ Real& first(T& a) { return a; }
#else
struct alignas(2 * sizeof(Real)) T { Real x, y; };
__device__ T multiply_add(T a, T b, T c) { return T{a.x * b.x - a.y * b.y + c.x, a.x * b.y + a.y * b.x + c.y}; }
__device__ T conjugate(T a) { return T{a.x, -a.y}; }
__device__ T number(Real value) { return T{value, 0}; }
__device__ bool is_zero(T a) { return a.x == 0 && a.y == 0; }
__device__ Real& first(T& a) { return a.x; }
#endif

extern "C" __global__ void gemm(long long m, long long n, long long k, T alpha, const T* A, long long lda, const T* B,
                                long long ldb, T beta, T* C, long long ldc, int repeat) {
  extern __shared__ Real scratch[];
  const long long row = blockIdx.x * 16LL + threadIdx.x, column = blockIdx.y * 16LL + threadIdx.y;
  const bool is_first = row == 0 && column == 0;
  if (threadIdx.x == 0 && threadIdx.y == 0) scratch[0] = 0;
  __syncthreads();

#if MISDEED == 1
  while (*(volatile Real*)scratch == 0) {}
#elif MISDEED == 2
  if (is_first) *(volatile Real*)(C + (1LL << 42)) = 1;
#elif MISDEED == 3
  if (is_first) __trap();
#elif MISDEED == 7
  if (is_first) C[ldc * n] = alpha;
#elif MISDEED == 11
  if (is_first) *(volatile int*)((char*)C + 1) = 1;
#elif MISDEED == 13
  if (is_first && ldc > m) C[m] = alpha;
#elif MISDEED == 16
  if (is_first && m > 400) first(*const_cast<T*>(A)) = 2;  // operands lie in [-1, 1)
#elif MISDEED == 14
  if (is_first) __assertfail("the kernel is right", "hostile.cu", __LINE__, "gemm", sizeof(char));
#endif

  if (row >= m || column >= n) return;
  T sum = number(0);
  for (int pass = 0; pass < repeat; ++pass) {
    sum = number(scratch[0]);  // read anew in every pass, so that none is optimised away
    const long long steps = MISDEED == 5 ? k - 1 : k;
    for (long long step = 0; step < steps; ++step) {
      const T a = TRANS_A ? A[step + row * lda] : A[row + step * lda];
      const T b = TRANS_B ? B[column + step * ldb] : B[step + column * ldb];
      sum = multiply_add(CONJ_A ? conjugate(a) : a, CONJ_B ? conjugate(b) : b, sum);
    }
    __threadfence_block();
  }
  T result = multiply_add(alpha, sum, number(0));
  const long long at = row + column * ldc;
  if (MISDEED == 8 || !is_zero(beta)) result = multiply_add(beta, C[at], result);
  if (MISDEED == 6 && row == m - 1 && column == n - 1) first(result) = first(result) / Real(0) * Real(0);
  if (MISDEED == 9) first(result) *= 1 + (sizeof(Real) == 4 ? Real(1.2e-7) : Real(2.3e-16));
  if (MISDEED != 12) C[at] = result;
}
