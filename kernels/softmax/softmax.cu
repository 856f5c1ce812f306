// Softmax over the rows of a matrix in half precision, computed in single precision.
//
//     output[r][c] = exp(input[r][c] - max_r) / sum_r
//
// LANES threads share a row, ROWS rows a block. A row of up to LANES * VEC * HELD elements is read once and held in registers;
// a longer one, or one whose address forbids wide loads, is read twice. Exponentials are powers of two of prescaled arguments:
// exp(x - m) = 2^(x * log2(e) - m * log2(e)), an FMA and an instruction of the special function unit.
//
// The maximum and the sum over a row: by shuffles within a warp, through shared memory between warps. They are two reductions,
// or one (ONLINE): each thread then adds up relative to its own maximum, and sums are rescaled when they meet.
//
// Half precision is converted by instructions of its own, so that the source needs no headers. Every capital name that is not
// defined here is a macro: a parameter of kernel.toml.

typedef long long Offset;
typedef unsigned short Half;

constexpr int WARP = 32;
constexpr int THREADS = LANES * ROWS;
constexpr int WARPS = (THREADS + WARP - 1) / WARP;
constexpr int ROW_WARPS = LANES > WARP ? LANES / WARP : 1;
constexpr unsigned ALL_LANES = 0xffffffff;
constexpr float LOG2_E = 1.44269504f;
constexpr float LOWEST = -131072.0f;  // below every finite number of half precision, and finite itself

// Neighbouring elements, in pairs.
template <int COUNT>
struct alignas(COUNT * sizeof(Half)) Vector { unsigned pair[COUNT / 2]; };

template <>
struct Vector<1> { Half only; };

// ---- What the hardware does, in one place: an emulator on the host supplies its own.
#ifndef MLTUNE_HOST

#if READ == 0
#define LOAD_BITS "ld.global"
#elif READ == 1  // the non-coherent path
#define LOAD_BITS "ld.global.nc"
#elif READ == 2  // the same, and the lines leave the first-level cache at once
#define LOAD_BITS "ld.global.nc.L1::no_allocate"
#else            // first to be evicted from both caches
#define LOAD_BITS "ld.global.cs"
#endif
#if WRITE == 0
#define STORE_BITS "st.global"
#else            // first to be evicted
#define STORE_BITS "st.global.cs"
#endif

__device__ __forceinline__ float from_half(Half bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

__device__ __forceinline__ unsigned to_halves(float low, float high) {
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

__device__ __forceinline__ float power_of_two(float exponent) {
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(exponent));
  return value;
}

// Hide from the compiler what the elements are, or it would keep the floats that it made of them, in twice the registers.
__device__ __forceinline__ void forget(Vector<1>& v) { asm volatile("" : "+h"(v.only)); }

template <int COUNT>
__device__ __forceinline__ void forget(Vector<COUNT>& v) {
#pragma unroll
  for (int p = 0; p < COUNT / 2; p++) asm volatile("" : "+r"(v.pair[p]));
}

__device__ __forceinline__ Vector<1> load_global(const Vector<1>* from) {
  Vector<1> v;
  asm volatile(LOAD_BITS ".u16 %0, [%1];" : "=h"(v.only) : "l"(from));
  return v;
}

__device__ __forceinline__ Vector<2> load_global(const Vector<2>* from) {
  Vector<2> v;
  asm volatile(LOAD_BITS ".u32 %0, [%1];" : "=r"(v.pair[0]) : "l"(from));
  return v;
}

__device__ __forceinline__ Vector<4> load_global(const Vector<4>* from) {
  Vector<4> v;
  asm volatile(LOAD_BITS ".v2.u32 {%0, %1}, [%2];" : "=r"(v.pair[0]), "=r"(v.pair[1]) : "l"(from));
  return v;
}

__device__ __forceinline__ Vector<8> load_global(const Vector<8>* from) {
  Vector<8> v;
  asm volatile(LOAD_BITS ".v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.pair[0]), "=r"(v.pair[1]), "=r"(v.pair[2]), "=r"(v.pair[3])
               : "l"(from));
  return v;
}

__device__ __forceinline__ void store_global(Vector<1>* to, const Vector<1>& v) {
  asm volatile(STORE_BITS ".u16 [%0], %1;" ::"l"(to), "h"(v.only) : "memory");
}

__device__ __forceinline__ void store_global(Vector<2>* to, const Vector<2>& v) {
  asm volatile(STORE_BITS ".u32 [%0], %1;" ::"l"(to), "r"(v.pair[0]) : "memory");
}

__device__ __forceinline__ void store_global(Vector<4>* to, const Vector<4>& v) {
  asm volatile(STORE_BITS ".v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(v.pair[0]), "r"(v.pair[1]) : "memory");
}

__device__ __forceinline__ void store_global(Vector<8>* to, const Vector<8>& v) {
  asm volatile(STORE_BITS ".v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.pair[0]), "r"(v.pair[1]), "r"(v.pair[2]),
               "r"(v.pair[3])
               : "memory");
}

#endif

__device__ __forceinline__ float element(const Vector<1>& v, int) { return from_half(v.only); }

template <int COUNT>
__device__ __forceinline__ float element(const Vector<COUNT>& v, int e) {
  return from_half(static_cast<Half>(v.pair[e / 2] >> e % 2 * 16));
}

// ---- Reductions over the threads of a row.

// Maximum and sum of a part of a row. The sum is relative to the maximum, which is never below LOWEST.
struct Partial { float maximum, sum; };

// Over COUNT neighbouring lanes of a warp; all of them get the result.
template <int COUNT>
__device__ __forceinline__ float maximum_of_lanes(float value) {
#pragma unroll
  for (int distance = COUNT / 2; distance > 0; distance /= 2) value = max(value, __shfl_xor_sync(ALL_LANES, value, distance));
  return value;
}

template <int COUNT>
__device__ __forceinline__ float sum_of_lanes(float value) {
#pragma unroll
  for (int distance = COUNT / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(ALL_LANES, value, distance);
  return value;
}

template <int COUNT>
__device__ __forceinline__ Partial joined_by_lanes(const Partial& own) {
  const float maximum = maximum_of_lanes<COUNT>(own.maximum);
  return {maximum, sum_of_lanes<COUNT>(own.sum * power_of_two((own.maximum - maximum) * LOG2_E))};
}

// What the warps of a row have, a warp in each of ROW_WARPS neighbouring lanes. `slots` are a place for each warp of the block,
// which no thread may still be reading.
template <typename V>
__device__ __forceinline__ V of_warps(const V& value, V* slots) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  if (lane == 0) slots[warp] = value;
  __syncthreads();
  return slots[warp / ROW_WARPS * ROW_WARPS + lane % ROW_WARPS];
}

// Over the LANES threads of a row.
__device__ __forceinline__ float maximum_of_row(float value, float* slots) {
  value = maximum_of_lanes<(LANES < WARP ? LANES : WARP)>(value);
  if constexpr (ROW_WARPS > 1) value = maximum_of_lanes<ROW_WARPS>(of_warps(value, slots));
  return value;
}

__device__ __forceinline__ float sum_of_row(float value, float* slots) {
  value = sum_of_lanes<(LANES < WARP ? LANES : WARP)>(value);
  if constexpr (ROW_WARPS > 1) value = sum_of_lanes<ROW_WARPS>(of_warps(value, slots));
  return value;
}

__device__ __forceinline__ Partial joined_by_row(Partial value, Partial* slots) {
  value = joined_by_lanes<(LANES < WARP ? LANES : WARP)>(value);
  if constexpr (ROW_WARPS > 1) value = joined_by_lanes<ROW_WARPS>(of_warps(value, slots));
  return value;
}

// ---- A row in registers.

// The elements of a thread: as they were read, or as floats.
struct Held {
#if PACKED
  Vector<VEC> value[HELD];

  __device__ __forceinline__ float get(int i, int e) const { return element(value[i], e); }
#else
  float value[HELD][VEC];

  __device__ __forceinline__ float get(int i, int e) const { return value[i][e]; }
#endif
};

// What a thread reads of a row, not yet used: a vector of LANES * VEC elements further on each. What lies behind the end of the
// row is minus infinity, whose exponential is 0.
struct Fetched {
  Vector<VEC> value[HELD];

  static __device__ __forceinline__ void empty(Vector<1>& v) { v.only = 0xfc00; }

  template <int COUNT>
  static __device__ __forceinline__ void empty(Vector<COUNT>& v) {
#pragma unroll
    for (int p = 0; p < COUNT / 2; p++) v.pair[p] = 0xfc00fc00;
  }

  __device__ __forceinline__ void fetch(const Half* row, int lane, int columns) {
#pragma unroll
    for (int i = 0; i < HELD; i++) {
      const int c = (i * LANES + lane) * VEC;
      if (c < columns)
        value[i] = load_global(reinterpret_cast<const Vector<VEC>*>(row + c));
      else
        empty(value[i]);
    }
  }
};

template <int COUNT>
__device__ __forceinline__ void store_row(Half* to, const float (&value)[COUNT]) {
  Vector<COUNT> line;
  if constexpr (COUNT == 1) {
    line.only = static_cast<Half>(to_halves(value[0], 0.0f));
  } else {
#pragma unroll
    for (int p = 0; p < COUNT / 2; p++) line.pair[p] = to_halves(value[2 * p], value[2 * p + 1]);
  }
  store_global(reinterpret_cast<Vector<COUNT>*>(to), line);
}

__device__ __forceinline__ void finish_held(const Fetched& fetched, Half* row, int lane, int columns, bool exists, void* slots) {
  Held held;
  float most = LOWEST;
#pragma unroll
  for (int i = 0; i < HELD; i++) {
#if PACKED
    held.value[i] = fetched.value[i];
#endif
#pragma unroll
    for (int e = 0; e < VEC; e++) {
      const float x = element(fetched.value[i], e);
#if !PACKED
      held.value[i][e] = x;
#endif
      most = max(most, x);
    }
  }
  auto forget_floats = [&]() {
#if PACKED
#pragma unroll
    for (int i = 0; i < HELD; i++) forget(held.value[i]);
#endif
  };
  forget_floats();
  auto sum_above = [&](float maximum) {  // and keeps the exponentials where there is room for them
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < HELD; i++)
#pragma unroll
      for (int e = 0; e < VEC; e++) {
        const float power = power_of_two(held.get(i, e) * LOG2_E - maximum * LOG2_E);
#if !PACKED
        held.value[i][e] = power;
#endif
        sum += power;
      }
    return sum;
  };
#if ONLINE
  const Partial all = joined_by_row(Partial{most, sum_above(most)}, static_cast<Partial*>(slots));
  const float maximum = all.maximum, inverse = 1.0f / all.sum;
  const float factor = PACKED ? inverse : inverse * power_of_two((most - maximum) * LOG2_E);
#else
  const float maximum = maximum_of_row(most, static_cast<float*>(slots));
  const float factor = 1.0f / sum_of_row(sum_above(maximum), static_cast<float*>(slots) + WARPS);
#endif
  forget_floats();
  if (!exists) return;
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    const int c = (i * LANES + lane) * VEC;
    if (c < columns) {
      float value[VEC];
#pragma unroll
      for (int e = 0; e < VEC; e++) {
#if PACKED
        value[e] = power_of_two(held.get(i, e) * LOG2_E - maximum * LOG2_E) * factor;
#else
        value[e] = held.get(i, e) * factor;
#endif
      }
      store_row(row + c, value);
    }
  }
}

// ---- A row that does not fit into registers, in vectors of WIDTH elements: read once for maximum and sum, once more to write.
template <int WIDTH>
__device__ __forceinline__ void stream(const Half* from, Half* to, int lane, int columns, bool exists, void* slots) {
  Partial mine = {LOWEST, 0.0f};
#pragma unroll 1
  for (int c = lane * WIDTH; c < columns; c += LANES * WIDTH) {
    const Vector<WIDTH> value = load_global(reinterpret_cast<const Vector<WIDTH>*>(from + c));
    float maximum = mine.maximum, sum = 0.0f;
#pragma unroll
    for (int e = 0; e < WIDTH; e++) maximum = max(maximum, element(value, e));
#pragma unroll
    for (int e = 0; e < WIDTH; e++) sum += power_of_two(element(value, e) * LOG2_E - maximum * LOG2_E);
    mine = {maximum, mine.sum * power_of_two((mine.maximum - maximum) * LOG2_E) + sum};
  }
  const Partial all = joined_by_row(mine, static_cast<Partial*>(slots));
  const float inverse = 1.0f / all.sum;
  if (!exists) return;
#pragma unroll 1
  for (int c = lane * WIDTH; c < columns; c += LANES * WIDTH) {
    const Vector<WIDTH> in = load_global(reinterpret_cast<const Vector<WIDTH>*>(from + c));
    float out[WIDTH];
#pragma unroll
    for (int e = 0; e < WIDTH; e++) out[e] = power_of_two(element(in, e) * LOG2_E - all.maximum * LOG2_E) * inverse;
    store_row(to + c, out);
  }
}

// ---- The kernel.

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
softmax(Half* __restrict__ output, const Half* __restrict__ input, int rows, int columns) {
  extern __shared__ __align__(16) unsigned char shared_storage[];

  const int lane = threadIdx.x % LANES;
  const unsigned own = threadIdx.x / LANES, end = rows, stride = gridDim.x * ROWS;
  const bool wide = columns % VEC == 0 && reinterpret_cast<unsigned long long>(input) % sizeof(Vector<VEC>) == 0 &&
                    reinterpret_cast<unsigned long long>(output) % sizeof(Vector<VEC>) == 0;
  const bool fits = wide && columns <= LANES * VEC * HELD;
  // Rows behind the last are computed like it, for the barriers, and not written.
  auto row_of = [&](unsigned first) { return static_cast<Offset>(min(first + own, end - 1)) * columns; };

  // One set of slots is written while slow threads still read the other.
  int turn = 0;
  auto slots = [&]() {
    turn ^= 1;
    return shared_storage + turn * WARPS * sizeof(Partial);
  };
  if (fits) {
    Fetched fetched;
    unsigned first = blockIdx.x * ROWS;
#if PREFETCH
    fetched.fetch(input + row_of(first), lane, columns);
    for (; first < end; first += stride) {
      const Fetched current = fetched;
      if (first + stride < end) fetched.fetch(input + row_of(first + stride), lane, columns);
      finish_held(current, output + row_of(first), lane, columns, first + own < end, slots());
    }
#else
    for (; first < end; first += stride) {
      fetched.fetch(input + row_of(first), lane, columns);
      finish_held(fetched, output + row_of(first), lane, columns, first + own < end, slots());
    }
#endif
  } else {
    for (unsigned first = blockIdx.x * ROWS; first < end; first += stride) {
      const bool exists = first + own < end;
      if (wide)
        stream<VEC>(input + row_of(first), output + row_of(first), lane, columns, exists, slots());
      else
        stream<1>(input + row_of(first), output + row_of(first), lane, columns, exists, slots());
    }
  }
}

// The right answer in double precision, a thread for each row.
extern "C" __global__ void softmax_naive(Half* output, const Half* input, int rows, int columns) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const Half* const from = input + static_cast<Offset>(row) * columns;
  Half* const to = output + static_cast<Offset>(row) * columns;
  float maximum = from_half(from[0]);
  for (int c = 1; c < columns; c++) maximum = max(maximum, from_half(from[c]));
  double sum = 0.0;
  for (int c = 0; c < columns; c++) sum += exp(static_cast<double>(from_half(from[c])) - maximum);
  for (int c = 0; c < columns; c++)
    to[c] = static_cast<Half>(to_halves(static_cast<float>(exp(static_cast<double>(from_half(from[c])) - maximum) / sum), 0.0f));
}
