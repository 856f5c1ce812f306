// The CUDA that the kernels use, for a host compiler: included before the unmodified source of a kernel. Barriers and
// intrinsics end in runtime.cpp, which plays the threads of a block and checks every access.
#pragma once

#define MLTUNE_HOST 1

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __restrict__ __restrict
#define __shared__  // dynamic only: `extern __shared__ unsigned char shared_storage[];` is the runtime's

struct Index {
  unsigned x, y, z;
};

extern "C" {
extern Index threadIdx, blockIdx, blockDim, gridDim;

void emulation_barrier(int line);
void emulation_copy(void* shared, const void* global, int bytes, bool valid);
void emulation_commit();
void emulation_wait(int pending);
void emulation_check_load(const void* global, int bytes);
}

#define __syncthreads() emulation_barrier(__LINE__)

template <int BYTES, int CACHE>
inline void cp_async(void* shared, const void* global) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
  emulation_copy(shared, global, BYTES, true);
}

template <int BYTES>
inline void cp_async_or_zero(void* shared, const void* global, bool valid) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
  emulation_copy(shared, global, BYTES, valid);
}

inline void cp_async_commit() { emulation_commit(); }

template <int PENDING>
inline void cp_async_wait() {
  static_assert(PENDING >= 0, "a number of groups");
  emulation_wait(PENDING);
}

template <typename V>
inline V load_global(const V* from) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16, "a load is of 4, 8 or 16 bytes");
  emulation_check_load(from, sizeof(V));
  return *from;
}

template <typename N>
constexpr N min(N a, N b) {
  return b < a ? b : a;
}

template <typename N>
constexpr N max(N a, N b) {
  return a < b ? b : a;
}
