// Reads of 16 bytes from global memory past the L1 cache: the grid reads mask + 1 places again and again, in order.
//
// The number of places is a power of two: whether they are in the L2 cache or in memory depends on it alone. The result is
// written if it has a value that nobody expects: `never`.

extern "C" __global__ void __launch_bounds__(THREADS)
measure(unsigned long long* out, const uint4* data, long long rounds, long long mask, long long seed, long long never) {
  unsigned all = THREADS * gridDim.x, place = unsigned(seed) + THREADS * blockIdx.x + threadIdx.x;
  uint4 sum = make_uint4(0, 0, 0, 0);
#pragma unroll 1
  for (long long round = 0; round < rounds; ++round) {
    uint4 read[STEPS];
#pragma unroll
    for (int number = 0; number < STEPS; ++number) {
      read[number] = __ldcg(data + (place & unsigned(mask)));
      place += all;
    }
#pragma unroll
    for (int number = 0; number < STEPS; ++number) {
      sum.x ^= read[number].x;
      sum.y ^= read[number].y;
      sum.z ^= read[number].z;
      sum.w ^= read[number].w;
    }
  }
  unsigned long long found = 3ull * (3ull * (3ull * sum.x + sum.y) + sum.z) + sum.w;
  if (found == never) out[threadIdx.x] = found;
}
