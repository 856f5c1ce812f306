// A histogram of 256 bins with copies in shared memory: few builds, since block and grid are read at launch.
__global__ void histogram(unsigned int *out, const unsigned char *in, int n) {
    __shared__ unsigned int bins[copies * (256 + padding)];
    for (int i = threadIdx.x; i < copies * (256 + padding); i += blockDim.x) bins[i] = 0;
    __syncthreads();
    unsigned int *own = bins + (threadIdx.x / spread) % copies * (256 + padding);
    const uint4 *vectors = (const uint4 *)in;
#pragma unroll unrolled
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n / 16; i += gridDim.x * blockDim.x) {
        const uint4 four = vectors[i];
        const unsigned int words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int word = 0; word < 4; word++)
#pragma unroll
            for (int byte = 0; byte < 4; byte++) atomicAdd(own + (words[word] >> 8 * byte & 255), 1u);
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < 256; bin += blockDim.x) {
        unsigned int sum = 0;
        for (int copy = 0; copy < copies; copy++) sum += bins[copy * (256 + padding) + bin];
        atomicAdd(out + bin, sum);
    }
}
