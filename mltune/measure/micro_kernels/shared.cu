// Reads of 16 bytes from shared memory, without conflicts of banks: in each round a thread reads STEPS other places.
//
// The result is written if it has a value that nobody expects: `never`.

extern "C" __global__ void __launch_bounds__(THREADS)
measure(unsigned long long* out, const uint4* data, long long rounds, long long mask, long long seed, long long never) {
  __shared__ uint4 tile[STEPS * THREADS];
  unsigned start = unsigned(seed) + threadIdx.x;
  for (int number = 0; number < STEPS; ++number) {
    unsigned place = number * THREADS + threadIdx.x;
    tile[place] = make_uint4(start, start + place, start ^ place, place);
  }
  __syncthreads();
  uint4 sum = make_uint4(0, 0, 0, 0);
#pragma unroll 1
  for (long long round = 0; round < rounds; ++round) {
    unsigned place = (threadIdx.x + unsigned(round)) % THREADS;
#pragma unroll
    for (int number = 0; number < STEPS; ++number) {
      uint4 read = tile[number * THREADS + place];
      sum.x ^= read.x;
      sum.y ^= read.y;
      sum.z ^= read.z;
      sum.w ^= read.w;
    }
  }
  unsigned long long found = 3ull * (3ull * (3ull * sum.x + sum.y) + sum.z) + sum.w;
  if (found == never) out[threadIdx.x] = found;
}
