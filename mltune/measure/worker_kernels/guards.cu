// The changed bytes of guard zones.
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
