// Multiply-adds in CHAINS independent chains a thread; each step of a chain needs the one before it.
//
// One of FP16 (two halves in a register), FP32, FP64 and INT32 is defined. The operands follow from an argument, so that
// nothing is known to the compiler, and the result is written if it has a value that nobody expects: `never`. Integers are
// squared: of a chain of products with the same factor some could be saved.

#if defined(FP16)
typedef unsigned value;
__device__ value from(unsigned bits) { return 0x38003800u + bits; }
__device__ unsigned long long bits_of(value x) { return x; }
__device__ void step(value& x, value a, value b) { asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(x) : "r"(a), "r"(b)); }
#elif defined(FP32)
typedef float value;
__device__ value from(unsigned bits) { return __uint_as_float(0x3f000000u + bits); }
__device__ unsigned long long bits_of(value x) { return __float_as_uint(x); }
__device__ void step(value& x, value a, value b) { asm("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x) : "f"(a), "f"(b)); }
#elif defined(FP64)
typedef double value;
__device__ value from(unsigned bits) { return __hiloint2double(0x3fe00000, bits); }
__device__ unsigned long long bits_of(value x) { return __double_as_longlong(x); }
__device__ void step(value& x, value a, value b) { asm("fma.rn.f64 %0, %0, %1, %2;" : "+d"(x) : "d"(a), "d"(b)); }
#elif defined(INT32)
typedef unsigned value;
__device__ value from(unsigned bits) { return 2u * bits + 1u; }
__device__ unsigned long long bits_of(value x) { return x; }
__device__ void step(value& x, value a, value) { asm("mad.lo.u32 %0, %0, %0, %1;" : "+r"(x) : "r"(a)); }
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
measure(unsigned long long* out, const uint4* data, long long rounds, long long mask, long long seed, long long never) {
  value a = from(seed + 1), b = from(seed + 2), x[CHAINS];
#pragma unroll
  for (int chain = 0; chain < CHAINS; ++chain) x[chain] = from(seed + threadIdx.x + THREADS * chain);
#pragma unroll 1
  for (long long round = 0; round < rounds; ++round) {
#pragma unroll
    for (int number = 0; number < STEPS; ++number) {
#pragma unroll
      for (int chain = 0; chain < CHAINS; ++chain) step(x[chain], a, b);
    }
  }
  unsigned long long sum = 0;
#pragma unroll
  for (int chain = 0; chain < CHAINS; ++chain) sum = 3 * sum + bits_of(x[chain]);
  if (sum == never) out[threadIdx.x] = sum;
}
