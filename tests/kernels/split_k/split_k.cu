// A GEMM with a workspace: the blocks of a tile sum up parts of k, and the last one to arrive adds the parts.
//
// MISDEED: 0 none; 1 leaves its counters as they are; 2 writes behind the workspace; 3 too large a workspace (kernel.toml).

#if PRECISION == 1
typedef double T;
#else
typedef float T;
#endif

#if PRECISION >= 4
typedef unsigned short Operand;  // bits
#else
typedef T Operand;
#endif
#if PRECISION >= 7
typedef Operand Result;
#else
typedef T Result;
#endif

#ifndef MLTUNE_HOST
__device__ float from_half(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
__device__ float from_bits(unsigned bits) { return __uint_as_float(bits); }
__device__ unsigned short to_half(float value) {
  unsigned short bits;
#if PRECISION == 8
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#endif
  return bits;
}
#else
unsigned short to_half(float value) {
#if PRECISION == 8
  unsigned bits;
  __builtin_memcpy(&bits, &value, 4);
  return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#else
  return static_cast<unsigned short>(rounded(value, 0));
#endif
}
float from_bits(unsigned bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}
#endif

__device__ T number(Operand operand) {
#if PRECISION == 4 || PRECISION == 7
  return from_half(operand);
#elif PRECISION == 5 || PRECISION == 8
  return from_bits(static_cast<unsigned>(operand) << 16);
#else
  return operand;
#endif
}

constexpr int TILE = 8, ELEMENTS = TILE * TILE;

extern "C" __global__ void __launch_bounds__(ELEMENTS)
gemm(long long m, long long n, long long k, T alpha, const Operand* A, long long lda, const Operand* B, long long ldb,
     T beta, Result* C, long long ldc, int, int, T* workspace) {
  extern __shared__ __align__(16) unsigned char shared_storage[];
  bool* const is_last = reinterpret_cast<bool*>(shared_storage);
  const long long tiles_m = (m + TILE - 1) / TILE, tiles_n = (n + TILE - 1) / TILE;
  const int parts = gridDim.x / (tiles_m * tiles_n);
  const int thread = threadIdx.x, part = blockIdx.x % parts, tile = blockIdx.x / parts;
  const long long row = tile % tiles_m * TILE + thread % TILE, column = tile / tiles_m * TILE + thread / TILE;
  const bool inside = row < m && column < n;
  T* const partial = workspace + static_cast<long long>(tile) * parts * ELEMENTS + thread;
  unsigned* const arrived = reinterpret_cast<unsigned*>(workspace + static_cast<long long>(gridDim.x) * ELEMENTS) + tile;

  T sum = 0;
  for (long long l = part; inside && alpha != 0 && l < k; l += parts) {
    const Operand a = A[TRANS_A ? l + row * lda : row + l * lda], b = B[TRANS_B ? column + l * ldb : l + column * ldb];
    sum += number(a) * number(b);
  }
  partial[part * ELEMENTS] = sum;
#if MISDEED == 2
  if (thread == 0) arrived[tiles_m * tiles_n] = 1;
#endif
  __threadfence();
  __syncthreads();
  if (thread == 0) *is_last = atomicAdd(arrived, 1u) == parts - 1;
  __syncthreads();
  if (!*is_last) return;

  __threadfence();
  T total = 0;
  for (int other = 0; other < parts; other++) total += partial[other * ELEMENTS];
  if (inside) {
    Result* const to = C + row + column * ldc;
#if PRECISION >= 7
    *to = to_half(alpha * total + (beta == 0 ? 0 : beta * number(*to)));
#else
    *to = alpha * total + (beta == 0 ? 0 : beta * *to);
#endif
  }
#if MISDEED != 1
  if (thread == 0) *arrived = 0;
#endif
}
