// Loads from shared memory mixed with arithmetic: in each of STEPS steps a thread loads LOAD_BYTES and does PER_LOAD multiply-adds
// (or, of a whole warp, products on the tensor cores). With DEPENDENT these take what was loaded as an operand, as those of a
// matrix product do; without it they need nothing from memory. The loads are volatile: else the assembler leaves out those that
// nothing needs, and those that read the same again.
//
// One of FP32, FP64, TENSOR_FP16, TENSOR_TF32 and TENSOR_FP64 is defined. Each block writes when its first warp began and its last
// one ended, on the clock of its multiprocessor, and the number of that: blocks side by side are taken together.

#if defined(FP64) || defined(TENSOR_FP64)
typedef double operand;
#define TYPE "f64"
#define OUT "=d"
#else
typedef unsigned operand;
#define TYPE "u32"
#define OUT "=r"
#endif
enum { WORDS = LOAD_BYTES / sizeof(operand) };
__device__ void load(operand* word, unsigned address) {
  if constexpr (WORDS == 1) asm volatile("ld.volatile.shared." TYPE " %0, [%1];" : OUT(word[0]) : "r"(address));
  if constexpr (WORDS == 2) {
    asm volatile("ld.volatile.shared.v2." TYPE " {%0,%1}, [%2];" : OUT(word[0]), OUT(word[1]) : "r"(address));
  }
  if constexpr (WORDS == 4) {
    asm volatile("ld.volatile.shared.v4." TYPE " {%0,%1,%2,%3}, [%4];"
                 : OUT(word[0]), OUT(word[1]), OUT(word[2]), OUT(word[3])
                 : "r"(address));
  }
}

#if defined(FP32)
typedef float sum;
enum { SUMS = 1, CHAINS = 8 };
__device__ void step(sum* x, const operand* word, const operand*, int number) {
  asm volatile("fma.rn.f32 %0, %1, %0, %1;" : "+f"(x[0]) : "f"(__uint_as_float(word[number % WORDS])));
}
#elif defined(FP64)
typedef double sum;
enum { SUMS = 1, CHAINS = 8 };
__device__ void step(sum* x, const operand* word, const operand*, int number) {
  asm volatile("fma.rn.f64 %0, %1, %0, %1;" : "+d"(x[0]) : "d"(word[number % WORDS]));
}
#elif defined(TENSOR_FP64)
typedef double sum;
enum { SUMS = 2, CHAINS = 8 };
__device__ void step(sum* x, const operand* word, const operand*, int number) {
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%2}, {%0,%1};"
               : "+d"(x[0]), "+d"(x[1])
               : "d"(word[number % WORDS]));
}
#else
typedef float sum;
enum { SUMS = 4, CHAINS = 8 };
#if defined(TENSOR_FP16)
#define INSTRUCTION "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#elif defined(TENSOR_TF32)
#define INSTRUCTION "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
#endif
__device__ void step(sum* x, const operand* word, const operand* other, int) {
  const operand* a = WORDS == 4 ? word : other;  // four words are a fragment of the first factor, two one of the second
  const operand* b = WORDS == 4 ? other : word;
  asm volatile(INSTRUCTION " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
measure(unsigned long long* out, const uint4* data, long long rounds, long long mask, long long seed, long long never) {
  __shared__ uint4 tile[THREADS + 96];
  for (int place = threadIdx.x; place < THREADS + 96; place += blockDim.x) tile[place] = make_uint4(seed, seed, seed, seed);
  unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(tile)) + LOAD_BYTES * threadIdx.x;
  operand fixed[4], other[4], word[2][WORDS];
  sum x[CHAINS][SUMS];
#pragma unroll
  for (int part = 0; part < 4; ++part) fixed[part] = other[part] = operand(seed + part);
#pragma unroll
  for (int part = 0; part < WORDS; ++part) word[0][part] = operand(seed + part);
#pragma unroll
  for (int chain = 0; chain < CHAINS; ++chain) {
#pragma unroll
    for (int part = 0; part < SUMS; ++part) x[chain][part] = sum(seed + chain);
  }
  __syncthreads();
  long long start = clock64();
#pragma unroll 1
  for (long long round = 0; round < rounds; ++round) {
#pragma unroll
    for (int number = 0; number < STEPS; ++number) {
      load(word[(number + 1) % 2], base + LOAD_BYTES * (number % 4) * 32);
#pragma unroll
      for (int part = 0; part < PER_LOAD; ++part) {
        step(x[(number * PER_LOAD + part) % CHAINS], DEPENDENT ? word[number % 2] : fixed, other, part);
      }
    }
  }
  sum all = 0;
#pragma unroll
  for (int chain = 0; chain < CHAINS; ++chain) {
#pragma unroll
    for (int part = 0; part < SUMS; ++part) all += x[chain][part];
  }
  if (all == sum(never)) start = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned multiprocessor;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
    out[3 * blockIdx.x] = start;
    out[3 * blockIdx.x + 1] = clock64();
    out[3 * blockIdx.x + 2] = multiprocessor;
  }
}
