// Sums of a signal over channels along the delays of many dispersion measures: bound by cache and by reuse.
// A thread computes `samples` samples of `measures` measures.
__global__ void dedisperse(float *out, const float *in, const int *delays, int channels, int length, int padded) {
    const int time = (blockIdx.x * block_size_x + threadIdx.x) * (adjacent ? samples : 1) +
                     (adjacent ? 0 : blockIdx.x * block_size_x * (samples - 1));
    const int step = adjacent ? 1 : block_size_x;
    const int measure = (blockIdx.y * block_size_y + threadIdx.y) * measures;
    const int count = gridDim.y * block_size_y * measures;
    float sum[measures][samples];
#pragma unroll
    for (int m = 0; m < measures; m++)
#pragma unroll
        for (int s = 0; s < samples; s++) sum[m][s] = 0;
#if staged
    __shared__ int delay[block_size_y * measures][staged];
#endif
#if staged
    for (int begin = 0; begin < channels; begin += staged) {
        __syncthreads();
        for (int i = threadIdx.y * block_size_x + threadIdx.x; i < block_size_y * measures * staged;
             i += block_size_x * block_size_y)
            delay[i / staged][i % staged] =
                delays[(blockIdx.y * block_size_y * measures + i / staged) * channels + begin + i % staged];
        __syncthreads();
#pragma unroll unrolled
        for (int c = begin; c < begin + staged; c++) {
#else
    {
#pragma unroll unrolled
        for (int c = 0; c < channels; c++) {
#endif
#pragma unroll
            for (int m = 0; m < measures; m++) {
#if staged
                const int late = delay[threadIdx.y * measures + m][c - begin];
#else
                const int late = __ldg(delays + (measure + m) * channels + c);
#endif
#pragma unroll
                for (int s = 0; s < samples; s++)
                    sum[m][s] += __ldg(in + (long long)c * padded + time + s * step + late);
            }
        }
    }
#pragma unroll
    for (int m = 0; m < measures; m++)
#pragma unroll
        for (int s = 0; s < samples; s++)
            if (measure + m < count && time + s * step < length)
                out[(long long)(measure + m) * length + time + s * step] = sum[m][s];
}
