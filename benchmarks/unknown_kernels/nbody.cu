// Accelerations of bodies under gravity, each from all others: bound by arithmetic.
// A thread keeps `bodies` of them in registers; others come through shared memory, or through the cache.
__global__ void accelerate(float4 *out, const float4 *in, int n) {
    const int first = blockIdx.x * block_size_x * bodies + threadIdx.x;
    float4 own[bodies];
    float3 sum[bodies];
#pragma unroll
    for (int b = 0; b < bodies; b++) {
        own[b] = in[min(first + b * block_size_x, n - 1)];
        sum[b] = make_float3(0, 0, 0);
    }
#if use_shared
    __shared__ float4 tile[block_size_x];
    for (int begin = 0; begin < n; begin += block_size_x) {
        tile[threadIdx.x] = in[begin + threadIdx.x];
        __syncthreads();
#pragma unroll unrolled
        for (int j = 0; j < block_size_x; j++) {
            const float4 other = tile[j];
#else
    {
#pragma unroll unrolled
        for (int j = 0; j < n; j++) {
            const float4 other = __ldg(in + j);
#endif
#pragma unroll
            for (int b = 0; b < bodies; b++) {
                const float x = other.x - own[b].x, y = other.y - own[b].y, z = other.z - own[b].z;
                const float square = x * x + y * y + z * z + 1e-3f;
#if root == 0
                const float inverse = rsqrtf(square);
                const float weight = other.w * inverse * inverse * inverse;
#elif root == 1
                const float weight = other.w / (square * sqrtf(square));
#else
                const float weight = other.w * rsqrtf(square * square * square);
#endif
                sum[b].x += weight * x;
                sum[b].y += weight * y;
                sum[b].z += weight * z;
            }
        }
#if use_shared
        __syncthreads();
#endif
    }
#pragma unroll
    for (int b = 0; b < bodies; b++)
        if (first + b * block_size_x < n)
            out[first + b * block_size_x] = make_float4(sum[b].x, sum[b].y, sum[b].z, 0);
}
