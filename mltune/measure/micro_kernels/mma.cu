// Products of small matrices on the tensor cores: each warp adds to CHAINS tiles, each step of a tile after the one before.
//
// One of FP16, BF16, TF32, FP64 and FP64_LARGE is defined. Sums are FP32, or FP64. Operands follow from an argument, and
// the result is written if it has a value that nobody expects: `never`.

#if defined(FP64)  // 8 x 8 x 4
typedef double element;
typedef double operand;
enum { A = 1, B = 1, D = 2 };
__device__ void step(element* d, const operand* a, const operand* b) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
      : "+d"(d[0]), "+d"(d[1])
      : "d"(a[0]), "d"(b[0]));
}
#elif defined(FP64_LARGE)  // 16 x 8 x 16
typedef double element;
typedef double operand;
enum { A = 8, B = 4, D = 4 };
__device__ void step(element* d, const operand* a, const operand* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, {%0,%1,%2,%3};"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]), "d"(b[1]),
        "d"(b[2]), "d"(b[3]));
}
#else  // 16 x 8 x 16, of TF32 16 x 8 x 8
#if defined(FP16)
#define INSTRUCTION "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#elif defined(BF16)
#define INSTRUCTION "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#elif defined(TF32)
#define INSTRUCTION "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
#endif
typedef float element;
typedef unsigned operand;
enum { A = 4, B = 2, D = 4 };
__device__ void step(element* d, const operand* a, const operand* b) {
  asm(INSTRUCTION " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
measure(unsigned long long* out, const uint4* data, long long rounds, long long mask, long long seed, long long never) {
  operand a[A], b[B];
  element d[CHAINS][D];
#pragma unroll
  for (int part = 0; part < A; ++part) a[part] = operand(seed + threadIdx.x + part);
#pragma unroll
  for (int part = 0; part < B; ++part) b[part] = operand(seed + threadIdx.x + A + part);
#pragma unroll
  for (int chain = 0; chain < CHAINS; ++chain) {
#pragma unroll
    for (int part = 0; part < D; ++part) d[chain][part] = element(seed + threadIdx.x + THREADS * (D * chain + part));
  }
#pragma unroll 1
  for (long long round = 0; round < rounds; ++round) {
#pragma unroll
    for (int number = 0; number < STEPS; ++number) {
#pragma unroll
      for (int chain = 0; chain < CHAINS; ++chain) step(d[chain], a, b);
    }
  }
  element sum = 0;
#pragma unroll
  for (int chain = 0; chain < CHAINS; ++chain) {
#pragma unroll
    for (int part = 0; part < D; ++part) sum += d[chain][part];
  }
  if (sum == element(never)) out[threadIdx.x] = 1;
}
