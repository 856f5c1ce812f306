// A bilateral filter of 11 by 11 over an image: bound by exponentials, by loads, or by shared memory.
#define RADIUS 5
__global__ void bilateral(float *out, const float *in, int width, int height) {
    const int left = blockIdx.x * block_size_x * tile_x, top = blockIdx.y * block_size_y * tile_y;
#if use_shared
    __shared__ float tile[block_size_y * tile_y + 2 * RADIUS][block_size_x * tile_x + 2 * RADIUS + padding];
    for (int i = threadIdx.y; i < block_size_y * tile_y + 2 * RADIUS; i += block_size_y)
        for (int j = threadIdx.x; j < block_size_x * tile_x + 2 * RADIUS; j += block_size_x)
            tile[i][j] = in[(long long)min(max(top + i - RADIUS, 0), height - 1) * width +
                            min(max(left + j - RADIUS, 0), width - 1)];
    __syncthreads();
#endif
#pragma unroll
    for (int r = 0; r < tile_y; r++)
#pragma unroll
        for (int q = 0; q < tile_x; q++) {
            const int i = threadIdx.y + r * block_size_y;
            const int j = near ? threadIdx.x * tile_x + q : threadIdx.x + q * block_size_x;
            const int y = top + i, x = left + j;
            if (x >= width || y >= height) continue;
#if use_shared
#define AT(dy, dx) tile[i + RADIUS + (dy)][j + RADIUS + (dx)]
#else
#define AT(dy, dx) __ldg(in + (long long)min(max(y + (dy), 0), height - 1) * width + min(max(x + (dx), 0), width - 1))
#endif
            const float centre = AT(0, 0);
            float sum = 0, weights = 0;
#pragma unroll unrolled
            for (int dy = -RADIUS; dy <= RADIUS; dy++)
#pragma unroll
                for (int dx = -RADIUS; dx <= RADIUS; dx++) {
                    const float value = AT(dy, dx), apart = value - centre;
                    const float exponent = -(dx * dx + dy * dy) / 18.f - apart * apart * 2.f;
#if fast
                    const float weight = __expf(exponent);
#else
                    const float weight = expf(exponent);
#endif
                    sum += weight * value;
                    weights += weight;
                }
            out[(long long)y * width + x] = sum / weights;
        }
}
