// Checksums of buffers.
#define FIRST ((long long)blockIdx.x * blockDim.x + threadIdx.x)
#define STEP ((long long)gridDim.x * blockDim.x)

extern "C" __global__ void checksum(const unsigned long long* addresses, const unsigned long long* words,
                                    unsigned long long* sums) {
  const unsigned int* buffer = (const unsigned int*)addresses[blockIdx.y];
  const long long end = words[blockIdx.y];
  unsigned long long sum = 0;
#pragma unroll 4
  for (long long i = FIRST; i < end; i += STEP)
    sum += (2 * (unsigned long long)i + 1) * buffer[i];  // odd weights: every changed bit and a changed order count
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lanes);
  if (threadIdx.x % 32 == 0 && sum) atomicAdd(&sums[blockIdx.y], sum);
}
