// The sum of n floats in one launch.
//
//     sum += input[0] + ... + input[n - 1]
//
// Threads add up vectors of VEC elements, UNROLL of them in flight, into ACCUMULATORS sums; shuffles add up the sums of a warp,
// shared memory those of a block. Then the blocks add to the result (COMBINE 0 and 1: in any order), or leave their sums in
// global memory, where the last block to end adds them in a fixed order (COMBINE 2: the same bits in every run).
//
// The elements before the first aligned vector and behind the last whole one are added one by one.
//
// Every capital name that is not defined here is a macro: a parameter of kernel.toml.

typedef long long Offset;

constexpr int WARP = 32;
constexpr int WARPS = THREADS / WARP;
constexpr unsigned ALL_LANES = 0xffffffff;
constexpr int MOST_MULTIPROCESSORS = 1024;

template <int COUNT>
struct alignas(COUNT * sizeof(float)) Vector { float at[COUNT]; };

#if COMBINE == 2
__device__ float partial[BLOCKS_PER_SM * MOST_MULTIPROCESSORS];  // sums of the blocks
__device__ unsigned ended;                                       // blocks that have left theirs; 0 between launches
#endif

// ---- What the hardware does, in one place: an emulator on the host supplies its own.
#ifndef MLTUNE_HOST

#if READ == 0
#define LOAD_FLOATS "ld.global"
#elif READ == 1  // the non-coherent path
#define LOAD_FLOATS "ld.global.nc"
#elif READ == 2  // the same, and the lines leave the first-level cache at once
#define LOAD_FLOATS "ld.global.nc.L1::no_allocate"
#elif READ == 3  // first to be evicted from both caches
#define LOAD_FLOATS "ld.global.cs"
#else            // past the first-level cache, 256 bytes at a time into the second
#define LOAD_FLOATS "ld.global.nc.L1::no_allocate.L2::256B"
#endif

__device__ __forceinline__ Vector<1> load_global(const Vector<1>* from) {
  Vector<1> v;
  asm volatile(LOAD_FLOATS ".f32 %0, [%1];" : "=f"(v.at[0]) : "l"(from));
  return v;
}

__device__ __forceinline__ Vector<2> load_global(const Vector<2>* from) {
  Vector<2> v;
  asm volatile(LOAD_FLOATS ".v2.f32 {%0, %1}, [%2];" : "=f"(v.at[0]), "=f"(v.at[1]) : "l"(from));
  return v;
}

__device__ __forceinline__ Vector<4> load_global(const Vector<4>* from) {
  Vector<4> v;
  asm volatile(LOAD_FLOATS ".v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.at[0]), "=f"(v.at[1]), "=f"(v.at[2]), "=f"(v.at[3])
               : "l"(from));
  return v;
}

#endif

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (int distance = WARP / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(ALL_LANES, value, distance);
  return value;
}

// The sum over the block, for its first warp.
__device__ __forceinline__ float sum_of_block(float value, float* of_warps) {
  value = sum_of_warp(value);
  if constexpr (WARPS > 1) {
    const int lane = threadIdx.x % WARP;
    if (lane == 0) of_warps[threadIdx.x / WARP] = value;
    __syncthreads();
    if (threadIdx.x < WARP) value = sum_of_warp(lane < WARPS ? of_warps[lane] : 0.0f);
  }
  return value;
}

// ---- The kernel.

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
reduction(float* sum, const float* __restrict__ input, long long n) {
  extern __shared__ __align__(16) unsigned char shared_storage[];
  float* const of_warps = reinterpret_cast<float*>(shared_storage);

  const int thread = threadIdx.x;
  const int misaligned = static_cast<int>(reinterpret_cast<unsigned long long>(input) / sizeof(float) % VEC);
  const int head = static_cast<int>(min(static_cast<Offset>((VEC - misaligned) % VEC), n));
  const Offset vectors = (n - head) / VEC;
  const int tail = static_cast<int>(n - head - vectors * VEC);
  const Vector<VEC>* const body = reinterpret_cast<const Vector<VEC>*>(input + head);

  float accumulator[ACCUMULATORS];
#pragma unroll
  for (int a = 0; a < ACCUMULATORS; a++) accumulator[a] = 0.0f;
  if (blockIdx.x == 0) {
    if (thread < head) accumulator[0] += input[thread];
    if (thread < tail) accumulator[0] += input[n - tail + thread];
  }

#if SPLIT == 0  // blocks take turns
  const Offset end = vectors, stride = static_cast<Offset>(gridDim.x) * THREADS * UNROLL;
  Offset at = static_cast<Offset>(blockIdx.x) * THREADS * UNROLL + thread;
#else           // every block has a range of its own, of whole warps of vectors
  const Offset units = (vectors + WARP - 1) / WARP, stride = THREADS * UNROLL;
  const Offset end = min(units * (blockIdx.x + 1) / gridDim.x * WARP, vectors);
  Offset at = units * blockIdx.x / gridDim.x * WARP + thread;
#endif
#pragma unroll 1
  for (; at + (UNROLL - 1) * THREADS < end; at += stride) {
    Vector<VEC> value[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) value[u] = load_global(body + at + u * THREADS);
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
#pragma unroll
      for (int e = 0; e < VEC; e++) accumulator[(u * VEC + e) % ACCUMULATORS] += value[u].at[e];
  }
#pragma unroll 1
  for (; at < end; at += THREADS) {  // fewer than UNROLL are left
    const Vector<VEC> value = load_global(body + at);
#pragma unroll
    for (int e = 0; e < VEC; e++) accumulator[e % ACCUMULATORS] += value.at[e];
  }

#pragma unroll
  for (int width = ACCUMULATORS / 2; width > 0; width /= 2)
#pragma unroll
    for (int a = 0; a < width; a++) accumulator[a] += accumulator[a + width];

#if COMBINE == 0  // every warp
  const float total = sum_of_warp(accumulator[0]);
  if (thread % WARP == 0) atomicAdd(sum, total);
#else
  const float total = sum_of_block(accumulator[0], of_warps);
#if COMBINE == 1  // every block
  if (thread == 0) atomicAdd(sum, total);
#else
  unsigned* const is_last = reinterpret_cast<unsigned*>(of_warps + WARPS);
  if (thread == 0) {
    *const_cast<volatile float*>(partial + blockIdx.x) = total;
    __threadfence();
    *is_last = atomicAdd(&ended, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (*is_last) {
    __threadfence();
    float rest = 0.0f;
    for (unsigned b = thread; b < gridDim.x; b += THREADS) rest += *const_cast<const volatile float*>(partial + b);
    rest = sum_of_block(rest, of_warps);
    if (thread == 0) {
      *sum += rest;
      ended = 0;
    }
  }
#endif
#endif
}

// The right answer in double precision, by one block of at most 1024 threads.
__device__ double sums[1024];

extern "C" __global__ void reduction_naive(float* sum, const float* input, long long n) {
  double mine = 0.0;
  for (Offset at = threadIdx.x; at < n; at += blockDim.x) mine += input[at];
  sums[threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    double all = *sum;
    for (unsigned t = 0; t < blockDim.x; t++) all += sums[t];
    *sum = static_cast<float>(all);
  }
}
