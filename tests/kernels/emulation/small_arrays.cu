// A small kernel of arrays for testing the emulator: output[i] = weights[0] * input[i] + the sum over the block's warp, and
// the number of blocks in `blocks`. BREAK selects a fault.
constexpr unsigned ALL = 0xffffffff;

__constant__ float weights[2];
__device__ int calls;

extern "C" __global__ void small(float* output, int* blocks, const float* input, int n) {
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x, i = block * threads + thread;
  const float mine = i < n ? input[i] : 0.0f;
  float sum = mine;
  for (int distance = 16; distance > 0; distance /= 2) {
#if BREAK == 1  // a lane stays away
    if (thread == 3) break;
#endif
    sum += __shfl_xor_sync(ALL, sum, distance);
  }
#if BREAK == 2  // two different shuffles
  if (thread % 2)
    sum = __shfl_up_sync(ALL, sum, 1);
  else
    sum = __shfl_down_sync(ALL, sum, 1);
#endif
#if BREAK == 3  // behind the end
  if (i <= n) output[i] = 0;
#endif
#if BREAK == 4
  const_cast<float*>(input)[0] = 0;
#endif
#if BREAK == 5  // behind the end of constant memory
  sum += weights[2 + thread];
#endif
  const float left = __shfl_up_sync(ALL, mine, 1), right = __shfl_down_sync(ALL, mine, 1), first = __shfl_sync(ALL, mine, 0);
  if (i < n) output[i] = weights[0] * (left + right + first) + sum;
  if (thread == 0) atomicAdd(blocks, atomicAdd(&calls, 1) + 1);
}

extern "C" __global__ void small_reference(float* output, int* blocks, const float* input, int n) {}
