// Convolution of an image of floats with a filter, where they overlap entirely:
//
//     output[y][x] = sum over i, j of input[y + i][x + j] * filter[i][j]
//
// The input has filter_width - 1 columns and filter_height - 1 rows more than the output. A block of block_size_x x block_size_y
// threads computes tile_size_x x tile_size_y outputs a thread, a block's width and height apart. The part of the input that it
// needs is staged in shared memory (use_shmem), or read through the first-level cache. The filter is in constant memory, and
// the loops over it are unrolled, so that its values are operands of the FMAs.
//
// Every name that is not defined here is a macro: a parameter of kernel.toml, FILTER_WIDTH or FILTER_HEIGHT.

typedef long long Offset;

constexpr int TILE_WIDTH = block_size_x * tile_size_x, TILE_HEIGHT = block_size_y * tile_size_y;
constexpr int INPUT_WIDTH = TILE_WIDTH + FILTER_WIDTH - 1, INPUT_HEIGHT = TILE_HEIGHT + FILTER_HEIGHT - 1;
// Padded, rows that are a block's width apart start in different banks.
constexpr int PITCH = INPUT_WIDTH + (use_padding ? (32 - (INPUT_WIDTH - block_size_x) % 32) % 32 : 0);

__constant__ float filter[FILTER_HEIGHT * FILTER_WIDTH];

// ---- What the hardware does, in one place: an emulator on the host supplies its own.
#ifndef MLTUNE_HOST

__device__ __forceinline__ float load_global(const float* from) {
#if read_only
  return __ldg(from);
#else
  return *from;
#endif
}

#endif

// All outputs of a thread, whose window begins at `window`; rows are `pitch` elements apart. Every row of the input is loaded
// once, for all outputs whose windows it crosses.
template <typename Load>
__device__ __forceinline__ void convolve(float (&sum)[tile_size_y][tile_size_x], const float* window, int pitch, Load load) {
  constexpr int ROWS = (tile_size_y - 1) * block_size_y + FILTER_HEIGHT;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    float value[tile_size_x][FILTER_WIDTH];
#pragma unroll
    for (int u = 0; u < tile_size_x; u++)
#pragma unroll
      for (int j = 0; j < FILTER_WIDTH; j++) value[u][j] = load(window + r * pitch + u * block_size_x + j);
#pragma unroll
    for (int v = 0; v < tile_size_y; v++) {
      const int i = r - v * block_size_y;  // row of the filter
      if (i >= 0 && i < FILTER_HEIGHT) {
#pragma unroll
        for (int j = 0; j < FILTER_WIDTH; j++)
#pragma unroll
          for (int u = 0; u < tile_size_x; u++) sum[v][u] += value[u][j] * filter[i * FILTER_WIDTH + j];
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(block_size_x * block_size_y)
convolution_cuda(float* output, const float* input, int width, int height) {
  const int x0 = blockIdx.x * TILE_WIDTH, y0 = blockIdx.y * TILE_HEIGHT;
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int input_width = width + FILTER_WIDTH - 1, input_height = height + FILTER_HEIGHT - 1;
  const float* const from = input + static_cast<Offset>(y0) * input_width + x0;
  float sum[tile_size_y][tile_size_x] = {};

#if use_shmem
  extern __shared__ __align__(16) unsigned char shared_storage[];
  float* const staged = reinterpret_cast<float*>(shared_storage);
  if (x0 + INPUT_WIDTH <= input_width && y0 + INPUT_HEIGHT <= input_height) {
#pragma unroll
    for (int y = ty; y < INPUT_HEIGHT; y += block_size_y)
#pragma unroll
      for (int x = tx; x < INPUT_WIDTH; x += block_size_x)
        staged[y * PITCH + x] = load_global(from + static_cast<Offset>(y) * input_width + x);
  } else {  // zeros behind the end of the image
#pragma unroll 1
    for (int y = ty; y < INPUT_HEIGHT; y += block_size_y)
#pragma unroll 1
      for (int x = tx; x < INPUT_WIDTH; x += block_size_x) {
        const bool exists = x0 + x < input_width && y0 + y < input_height;
        staged[y * PITCH + x] = exists ? load_global(from + static_cast<Offset>(y) * input_width + x) : 0.0f;
      }
  }
  __syncthreads();
  convolve(sum, staged + ty * PITCH + tx, PITCH, [](const float* at) { return *at; });
#else
  if (x0 + INPUT_WIDTH <= input_width && y0 + INPUT_HEIGHT <= input_height) {
    convolve(sum, from + static_cast<Offset>(ty) * input_width + tx, input_width, [](const float* at) { return load_global(at); });
  } else {  // rolled: at the end of the image an output that does not exist reads the window of the last one
#pragma unroll 1
    for (int i = 0; i < FILTER_HEIGHT; i++)
#pragma unroll 1
      for (int j = 0; j < FILTER_WIDTH; j++)
#pragma unroll
        for (int v = 0; v < tile_size_y; v++)
#pragma unroll
          for (int u = 0; u < tile_size_x; u++) {
            const int x = min(x0 + u * block_size_x + tx, width - 1), y = min(y0 + v * block_size_y + ty, height - 1);
            sum[v][u] += load_global(input + static_cast<Offset>(y + i) * input_width + x + j) * filter[i * FILTER_WIDTH + j];
          }
  }
#endif

#pragma unroll
  for (int v = 0; v < tile_size_y; v++)
#pragma unroll
    for (int u = 0; u < tile_size_x; u++) {
      const int x = x0 + u * block_size_x + tx, y = y0 + v * block_size_y + ty;
      if (x < width && y < height) output[static_cast<Offset>(y) * width + x] = sum[v][u];
    }
}

// The right answer in double precision, one thread for an output.
extern "C" __global__ void convolution_naive(float* output, const float* input, int width, int height) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  double sum = 0.0;
#pragma unroll 1
  for (int i = 0; i < FILTER_HEIGHT; i++)
#pragma unroll 1
    for (int j = 0; j < FILTER_WIDTH; j++)
      sum += static_cast<double>(input[static_cast<Offset>(y + i) * (width + FILTER_WIDTH - 1) + x + j]) * filter[i * FILTER_WIDTH + j];
  output[static_cast<Offset>(y) * width + x] = static_cast<float>(sum);
}
