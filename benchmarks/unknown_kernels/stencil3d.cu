// A star of 25 points in three dimensions: bound by memory and by the latency of its planes.
// A block walks `planes` planes along z; the column of a thread is kept in registers if `queue`, and its plane in shared
// memory if `use_shared`.
#define RADIUS 4
__global__ void star(float *out, const float *in, int nx, int ny, int nz) {
    const int x = blockIdx.x * block_size_x + threadIdx.x + RADIUS;
    const int begin = blockIdx.z * planes + RADIUS;
    const long long plane = (long long)nx * ny;
    const float weight[RADIUS + 1] = {-.8f, .4f, -.1f, .02f, -.005f};
#if use_shared
    __shared__ float tile[block_size_y * rows + 2 * RADIUS][block_size_x + 2 * RADIUS];
#endif
    const int top = blockIdx.y * block_size_y * rows + threadIdx.y + RADIUS;
#if queue
    float column[rows][2 * RADIUS + 1];
#pragma unroll
    for (int r = 0; r < rows; r++)
#pragma unroll
        for (int d = 0; d < 2 * RADIUS; d++) {
            const int y = top + r * block_size_y;
            column[r][d + 1] = y < ny && x < nx ? in[(begin + d - RADIUS) * plane + (long long)y * nx + x] : 0;
        }
#endif
#pragma unroll unrolled
    for (int z = begin; z < begin + planes; z++) {
        if (z >= nz - RADIUS) return;
#if use_shared
        __syncthreads();
        for (int i = threadIdx.y; i < block_size_y * rows + 2 * RADIUS; i += block_size_y)
            for (int j = threadIdx.x; j < block_size_x + 2 * RADIUS; j += block_size_x) {
                const int gy = blockIdx.y * block_size_y * rows + i, gx = blockIdx.x * block_size_x + j;
                tile[i][j] = gy < ny && gx < nx ? in[z * plane + (long long)gy * nx + gx] : 0;
            }
        __syncthreads();
#endif
#pragma unroll
        for (int r = 0; r < rows; r++) {
            const int y = top + r * block_size_y;
            const bool inside = x < nx - RADIUS && y < ny - RADIUS;
            const float *here = in + z * plane + (long long)y * nx + x;
#if queue
#pragma unroll
            for (int d = 0; d < 2 * RADIUS; d++) column[r][d] = column[r][d + 1];
            column[r][2 * RADIUS] = inside ? here[RADIUS * plane] : 0;
#endif
            if (inside) {
#if use_shared
                const int i = threadIdx.y + r * block_size_y + RADIUS, j = threadIdx.x + RADIUS;
                float sum = 3 * weight[0] * tile[i][j];
#pragma unroll
                for (int d = 1; d <= RADIUS; d++)
                    sum += weight[d] * (tile[i][j - d] + tile[i][j + d] + tile[i - d][j] + tile[i + d][j]);
#else
                float sum = 3 * weight[0] * here[0];
#pragma unroll
                for (int d = 1; d <= RADIUS; d++)
                    sum += weight[d] * (here[-d] + here[d] + here[-d * nx] + here[d * nx]);
#endif
#pragma unroll
                for (int d = 1; d <= RADIUS; d++)
#if queue
                    sum += weight[d] * (column[r][RADIUS - d] + column[r][RADIUS + d]);
#else
                    sum += weight[d] * (here[-d * plane] + here[d * plane]);
#endif
                out[z * plane + (long long)y * nx + x] = sum;
            }
        }
    }
}
