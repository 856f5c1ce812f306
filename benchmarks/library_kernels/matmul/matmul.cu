// C = A B of row-major matrices of floats, any sizes: a block computes STEP rows and STEP * tile_size_x columns.

#define STEP block_size_x

extern "C" __global__ void __launch_bounds__(block_size_x * block_size_y)
matmul(float* __restrict__ C, const float* __restrict__ A, const float* __restrict__ B, int rows, int columns, int depth) {
  __shared__ float a[STEP][STEP];
  __shared__ float b[STEP][STEP * tile_size_x];
  const int x = threadIdx.x, y = threadIdx.y;
  const int column = blockIdx.x * STEP * tile_size_x + x, row = blockIdx.y * STEP + y;
  float sums[tile_size_y][tile_size_x] = {};
  for (int first = 0; first < depth; first += STEP) {
#pragma unroll
    for (int i = 0; i < tile_size_y; i++) {
      const int line = y + i * block_size_y, r = row + i * block_size_y;
      a[line][x] = r < rows && first + x < depth ? A[(long long)r * depth + first + x] : 0.0f;
#pragma unroll
      for (int j = 0; j < tile_size_x; j++) {
        const int c = column + j * STEP;
        b[line][x + j * STEP] = first + line < depth && c < columns ? B[(long long)(first + line) * columns + c] : 0.0f;
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < STEP; k++)
#pragma unroll
      for (int i = 0; i < tile_size_y; i++)
#pragma unroll
        for (int j = 0; j < tile_size_x; j++) sums[i][j] += a[y + i * block_size_y][k] * b[k][x + j * STEP];
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < tile_size_y; i++)
#pragma unroll
    for (int j = 0; j < tile_size_x; j++) {
      const int r = row + i * block_size_y, c = column + j * STEP;
      if (r < rows && c < columns) C[(long long)r * columns + c] = sums[i][j];
    }
}
