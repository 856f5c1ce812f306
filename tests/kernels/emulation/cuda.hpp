// The CUDA that the kernels use, for a host compiler: included before the unmodified source of a kernel. Barriers and
// intrinsics end in runtime.cpp, which plays the threads of a block and checks every access.
#pragma once

#include "mma.hpp"

#define MLTUNE_HOST 1

#define __global__
#define __device__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
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
void emulation_copy_part(void* shared, const void* global, int bytes, int valid);
void emulation_commit();
void emulation_wait(int pending);
void emulation_check_load(const void* global, int bytes);
void emulation_check_store(void* global, int bytes);
void emulation_atomic(void* pointer, int bytes);
void emulation_acquire();
int emulation_lane();
unsigned emulation_shuffle(unsigned value, int source, int line);
void emulation_warp_synced();

double exp(double);
float fabsf(float);
}

#define __syncthreads() emulation_barrier(__LINE__)

#include "hopper.hpp"

template <int BYTES, int CACHE = 1>
inline void cp_async(void* shared, const void* global) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
  emulation_copy(shared, global, BYTES, true);
}

template <int BYTES>
inline void cp_async_or_zero(void* shared, const void* global, bool valid) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
  emulation_copy(shared, global, BYTES, valid);
}

// The first `valid` of BYTES bytes, and zeros.
template <int BYTES>
inline void cp_async_part(void* shared, const void* global, int valid) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
  emulation_copy_part(shared, global, BYTES, valid);
}

inline void cp_async_commit() { emulation_commit(); }

template <int PENDING>
inline void cp_async_wait() {
  static_assert(PENDING >= 0, "a number of groups");
  emulation_wait(PENDING);
}

template <typename V>
inline V load_global(const V* from) {
  static_assert(sizeof(V) == 1 || sizeof(V) == 2 || sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16, "a load is of 1, 2, 4, 8 or 16 bytes");
  emulation_check_load(from, sizeof(V));
  return *from;
}

template <typename V>
inline void store_global(V* to, const V& value) {
  static_assert(sizeof(V) == 1 || sizeof(V) == 2 || sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16, "a store is of 1, 2, 4, 8 or 16 bytes");
  emulation_check_store(to, sizeof(V));
  *to = value;
}

// ---- Shuffles: the lanes of a warp wait for each other. Threads of a block run one at a time, so nothing else needs to wait.

template <typename V>
inline V emulation_shuffled(unsigned mask, V value, int source, int line) {
  static_assert(sizeof(V) == 4, "a shuffle is of 4 bytes");
  if (mask != 0xffffffff) __builtin_trap();
  unsigned bits;
  __builtin_memcpy(&bits, &value, 4);
  bits = emulation_shuffle(bits, source, line);
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

template <typename V>
inline V __shfl_sync(unsigned mask, V value, int lane, int line = __builtin_LINE()) {
  return emulation_shuffled(mask, value, lane, line);
}

template <typename V>
inline V __shfl_xor_sync(unsigned mask, V value, int distance, int line = __builtin_LINE()) {
  return emulation_shuffled(mask, value, emulation_lane() ^ distance, line);
}

template <typename V>
inline V __shfl_up_sync(unsigned mask, V value, int distance, int line = __builtin_LINE()) {
  const int lane = emulation_lane();
  return emulation_shuffled(mask, value, lane < distance ? lane : lane - distance, line);
}

template <typename V>
inline V __shfl_down_sync(unsigned mask, V value, int distance, int line = __builtin_LINE()) {
  const int lane = emulation_lane();
  return emulation_shuffled(mask, value, lane + distance > 31 ? lane : lane + distance, line);
}

inline void __syncwarp(int line = __builtin_LINE()) {
  emulation_shuffle(0, emulation_lane(), line);
  emulation_warp_synced();
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

inline unsigned warp_ballot(bool value, int line = __builtin_LINE()) {
  unsigned lanes = 0;
  for (int lane = 0; lane < 32; lane++) lanes |= emulation_shuffle(value, lane, line) << lane;
  return lanes;
}

#define UNCHECKED __attribute__((no_sanitize("thread", "undefined")))  // checked as atomic

template <typename V>
UNCHECKED inline V atomicAdd(V* sum, V value) {
  emulation_atomic(sum, sizeof(V));
  const V old = *sum;
  *sum = old + value;
  return old;
}

template <typename V>
UNCHECKED inline V atomicMax(V* most, V value) {
  emulation_atomic(most, sizeof(V));
  const V old = *most;
  if (old < value) *most = value;
  return old;
}

inline unsigned add_release(unsigned* to, unsigned value) { return atomicAdd(to, value); }

template <typename V>
UNCHECKED inline V load_acquire(const V* from) {
  emulation_check_load(from, sizeof(V));
  emulation_acquire();
  return *from;
}

#undef UNCHECKED

inline void prefetch(const float*) {}

template <typename V>
inline V load_shared_by_blocks(const V* from) {
  return *from;
}

inline void __threadfence() {}
inline void keep_order() {}
inline unsigned block_again() { return blockIdx.x; }
inline int thread_again() { return threadIdx.x; }
inline unsigned again(unsigned value) { return value; }

// Flags between blocks. Blocks run one after the other, the smaller numbers first: who waits for a later one waits forever.
inline void raise(unsigned* flag, unsigned value) { *flag = value; }
inline bool is_raised(const unsigned* flag) { return *flag != 0; }

// ---- Double precision, rounded once each. A compiler for a host with FMA must not contract them either. They are templates
// so that a kernel's own functions of these names come first.

template <typename V>
inline V plus(V a, V b) {
  volatile V sum = a + b;
  return sum;
}

template <typename V>
inline V minus(V a, V b) {
  return plus<V>(a, -b);
}

template <typename V>
inline V times(V a, V b) {
  volatile V product = a * b;
  return product;
}

inline double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }

// ---- Half precision and exponentials.

inline unsigned bits_of(float value) {
  unsigned bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}

inline float float_of(unsigned bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

inline float from_half(unsigned short bits) {
  _Float16 value;
  __builtin_memcpy(&value, &bits, 2);
  return static_cast<float>(value);
}

inline unsigned to_halves(float low, float high) {
  const _Float16 values[2] = {static_cast<_Float16>(low), static_cast<_Float16>(high)};
  unsigned bits;
  __builtin_memcpy(&bits, values, 4);
  return bits;
}

inline float power_of_two(float exponent) { return __builtin_exp2f(exponent); }

template <typename V>
inline void forget(V&) {}

template <typename N>
constexpr N min(N a, N b) {
  return b < a ? b : a;
}

template <typename N>
constexpr N max(N a, N b) {
  return a < b ? b : a;
}

// ---- Elements of a result in half precision.

inline unsigned short narrowed(float value) {
#if PRECISION == 8 || (PRECISION >= 9 && (PRECISION - 9) % 4 % 3 == 0)
  unsigned bits;
  __builtin_memcpy(&bits, &value, 4);
  if (value != value) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#else
  const _Float16 half = static_cast<_Float16>(value);
  unsigned short bits;
  __builtin_memcpy(&bits, &half, 2);
  return bits;
#endif
}

inline unsigned rounded(float low, float high) { return narrowed(low) | static_cast<unsigned>(narrowed(high)) << 16; }

inline float widened(unsigned short element) {
#if PRECISION == 8 || (PRECISION >= 9 && (PRECISION - 9) % 4 % 3 == 0)
  const unsigned bits = static_cast<unsigned>(element) << 16;
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
#else
  _Float16 half;
  __builtin_memcpy(&half, &element, 2);
  return static_cast<float>(half);
#endif
}

extern "C" float expf(float) noexcept;
inline float exponential(float x) { return expf(x); }
inline float quotient(float x, float y) { return x / y; }

// Of 8 x 8 elements in half precision thread 4 i + j has those of row i and columns 2 j and 2 j + 1; then of the transposed matrix.
inline unsigned emulation_transposed(unsigned two, int line) {
#if SWAP
  return two;
#else
  const int lane = emulation_lane(), column = lane / 4, row = lane % 4 * 2;
  const unsigned first = emulation_shuffled(~0u, two, row * 4 + column / 2, line);
  const unsigned second = emulation_shuffled(~0u, two, (row + 1) * 4 + column / 2, line);
  return (first >> column % 2 * 16 & 0xffff) | (second >> column % 2 * 16) << 16;
#endif
}

// Two of them, to lines in shared memory and from there. Thread 8 l + i has the place of line i of matrix l.
inline unsigned* emulation_word(const void* shared, int matrix, int line) {
  const unsigned place = shared_address(shared), lane = emulation_lane();
  const unsigned there = emulation_shuffled(~0u, place, 8 * matrix + lane / 4, line) + lane % 4 * 4;
  return reinterpret_cast<unsigned*>(const_cast<char*>(static_cast<const char*>(shared)) - place + there);
}

inline void store_matrices(void* shared, unsigned first, unsigned second, int line = __builtin_LINE()) {
  *emulation_word(shared, 0, line) = emulation_transposed(first, line);
  *emulation_word(shared, 1, line) = emulation_transposed(second, line);
}

inline void load_matrices(const void* shared, unsigned (&two)[2], int line = __builtin_LINE()) {
  for (int i = 0; i < 2; i++) two[i] = emulation_transposed(*emulation_word(shared, i, line), line);
}
