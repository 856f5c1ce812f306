// Loads from shared memory mixed with arithmetic: in each of STEPS steps a thread loads LOAD_BYTES and does PER_LOAD multiply-adds
// (or, of a whole warp, products on the tensor cores). With DEPENDENT these take what was loaded as an operand, as those of a
// matrix product do; without it they need nothing from memory.
//
// One of FP32, FP64, TENSOR_FP16, TENSOR_TF32 and TENSOR_FP64 is defined. Each block writes the clocks that it took to `out`; its
// sums are written if they have a value that nobody expects: `never`.

#if LOAD_BYTES == 4
#define LOAD(word, address) asm volatile("ld.shared.u32 %0, [%1];" : "=r"((word)[0]) : "r"(address))
#elif LOAD_BYTES == 8
#define LOAD(word, address) asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"((word)[0]), "=r"((word)[1]) : "r"(address))
#else
#define LOAD(word, address)                                    \
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"         \
               : "=r"((word)[0]), "=r"((word)[1]), "=r"((word)[2]), "=r"((word)[3]) \
               : "r"(address))
#endif
enum { WORDS = LOAD_BYTES / 4 };

#if defined(FP32)
typedef float sum;
enum { SUMS = 1, CHAINS = 16 };
__device__ void step(sum* x, const unsigned* word, int number) {
  asm volatile("fma.rn.f32 %0, %1, %0, %1;" : "+f"(x[0]) : "f"(__uint_as_float(word[number % WORDS])));
}
#elif defined(FP64)
typedef double sum;
enum { SUMS = 1, CHAINS = 16 };
__device__ void step(sum* x, const unsigned* word, int number) {
  int at = 2 * (number % (WORDS / 2));
  asm volatile("fma.rn.f64 %0, %1, %0, %1;" : "+d"(x[0]) : "d"(__hiloint2double(word[at + 1], word[at])));
}
#elif defined(TENSOR_FP64)
typedef double sum;
enum { SUMS = 2, CHAINS = 8 };
__device__ void step(sum* x, const unsigned* word, int number) {
  int at = 2 * (number % (WORDS / 2));
  double operand = __hiloint2double(word[at + 1], word[at]);
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%2}, {%0,%1};"
               : "+d"(x[0]), "+d"(x[1])
               : "d"(operand));
}
#else
typedef float sum;
enum { SUMS = 4, CHAINS = 8 };
#if defined(TENSOR_FP16)
#define INSTRUCTION "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#elif defined(TENSOR_TF32)
#define INSTRUCTION "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
#endif
__device__ void step(sum* x, const unsigned* word, int number) {
  asm volatile(INSTRUCTION " {%0,%1,%2,%3}, {%4,%5,%4,%5}, {%4,%5}, {%0,%1,%2,%3};"
               : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
               : "r"(word[0]), "r"(word[WORDS / 2]));
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
measure(unsigned long long* out, const uint4* data, long long rounds, long long mask, long long seed, long long never) {
  __shared__ uint4 tile[2 * THREADS];
  for (int place = threadIdx.x; place < 2 * THREADS; place += blockDim.x) tile[place] = make_uint4(seed, seed, seed, seed);
  __syncthreads();
  unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(tile)) + LOAD_BYTES * threadIdx.x;
  unsigned fixed[WORDS], word[2][WORDS];
  sum x[CHAINS][SUMS];
#pragma unroll
  for (int part = 0; part < WORDS; ++part) fixed[part] = word[0][part] = unsigned(seed) + part;
#pragma unroll
  for (int chain = 0; chain < CHAINS; ++chain) {
#pragma unroll
    for (int part = 0; part < SUMS; ++part) x[chain][part] = sum(seed + chain);
  }
  long long start = clock64();
#pragma unroll 1
  for (long long round = 0; round < rounds; ++round) {
#pragma unroll
    for (int number = 0; number < STEPS; ++number) {
      LOAD(word[(number + 1) % 2], base + LOAD_BYTES * (number % 4) * 32);
#pragma unroll
      for (int part = 0; part < PER_LOAD; ++part) {
        step(x[(number * PER_LOAD + part) % CHAINS], DEPENDENT ? word[number % 2] : fixed, part);
      }
    }
  }
  long long clocks = clock64() - start;
  sum all = 0;
#pragma unroll
  for (int chain = 0; chain < CHAINS; ++chain) {
#pragma unroll
    for (int part = 0; part < SUMS; ++part) all += x[chain][part];
  }
  if (all == sum(never)) clocks = 0;
  if (threadIdx.x == 0) out[blockIdx.x] = clocks;
}
