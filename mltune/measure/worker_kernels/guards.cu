// The changed bytes of guard zones, and the bytes in which two buffers differ.
#define FIRST ((long long)blockIdx.x * blockDim.x + threadIdx.x)
#define STEP ((long long)gridDim.x * blockDim.x)

// zones: the address, the size and the content of each guard zone; results: its changed bytes
extern "C" __global__ void count_changed(const unsigned long long* zones, unsigned long long* results) {
  const unsigned char* zone = (const unsigned char*)zones[3 * blockIdx.y];
  const long long bytes = zones[3 * blockIdx.y + 1];
  const unsigned char guard = zones[3 * blockIdx.y + 2];
  unsigned long long changed = 0;
#pragma unroll 4
  for (long long i = FIRST; i < bytes; i += STEP) changed += zone[i] != guard;
  if (changed) atomicAdd(&results[blockIdx.y], changed);
}

extern "C" __global__ void count_different(const unsigned char* buffer, const unsigned char* other, long long bytes,
                                           unsigned long long* result) {
  unsigned long long different = 0;
  for (long long i = FIRST; i < bytes; i += STEP) different += buffer[i] != other[i];
  if (different) atomicAdd(result, different);
}
