// A kernel of known duration.
extern "C" __global__ void spin(long long nanoseconds) {
  long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

// Reads words, which are zeros, so that the L2 cache holds them and nothing else.
extern "C" __global__ void fill_cache(const unsigned long long* words, long long count, unsigned long long* unwritten) {
  unsigned long long bits = 0;
#pragma unroll 8
  for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (long long)gridDim.x * blockDim.x)
    bits |= words[at];
  if (bits) *unwritten = bits;
}
