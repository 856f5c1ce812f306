// The nearest of 64 centres for each point of 16 coordinates: the step of k-means, bound by arithmetic or shared memory.
#define CENTRES 64
#define SIZE 16
__constant__ float fixed[CENTRES * SIZE];
__global__ void assign(float *out, const float *points, const float *centres, int n) {
    const int first = blockIdx.x * block_size_x * points_each + threadIdx.x;
#if place == 1
    __shared__ float near_by[CENTRES * SIZE];
    for (int i = threadIdx.x; i < CENTRES * SIZE; i += block_size_x) near_by[i] = centres[i];
    __syncthreads();
#endif
#if place == 0
#define CENTRE(c, d) __ldg(centres + (c) * SIZE + (d))
#elif place == 1
#define CENTRE(c, d) near_by[(c) * SIZE + (d)]
#else
#define CENTRE(c, d) fixed[(c) * SIZE + (d)]
#endif
    float own[points_each][SIZE], best[points_each];
#pragma unroll
    for (int p = 0; p < points_each; p++) {
        best[p] = 3e38f;
#pragma unroll
        for (int d = 0; d < SIZE; d++)
            own[p][d] = points[(long long)d * n + min(first + p * block_size_x, n - 1)];
    }
#pragma unroll unrolled
    for (int c = 0; c < CENTRES; c += centres_each) {
        float distance[points_each][centres_each];
#pragma unroll
        for (int e = 0; e < centres_each; e++)
#pragma unroll
            for (int p = 0; p < points_each; p++) distance[p][e] = 0;
#pragma unroll
        for (int d = 0; d < SIZE; d++)
#pragma unroll
            for (int e = 0; e < centres_each; e++) {
                const float centre = CENTRE(c + e, d);
#pragma unroll
                for (int p = 0; p < points_each; p++) {
                    const float apart = own[p][d] - centre;
                    distance[p][e] += apart * apart;
                }
            }
#pragma unroll
        for (int e = 0; e < centres_each; e++)
#pragma unroll
            for (int p = 0; p < points_each; p++) best[p] = fminf(best[p], distance[p][e]);
    }
#pragma unroll
    for (int p = 0; p < points_each; p++)
        if (first + p * block_size_x < n) out[first + p * block_size_x] = best[p];
}
