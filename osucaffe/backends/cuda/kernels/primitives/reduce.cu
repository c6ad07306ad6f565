// Owns sums of squares, in two steps. T: element type of x.

#ifdef T
extern "C" __global__ void square_parts(const T* x, float* partial, int64_t count) {
    PDL_BEGIN;
    float sum = 0;
    FOR_EACH(count) {
        float v = to_float(x[id]);
        sum += v * v;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
#endif

// y = the sum of x. One block.
extern "C" __global__ void sum_parts(const float* x, float* y, int64_t count) {
    PDL_BEGIN;
    float sum = 0;
    for (int64_t id = threadIdx.x; id < count; id += blockDim.x) sum += x[id];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *y = sum;
}
