// Owns sums that make one number: of squares, of weighted scalars.
//
// T: element type of x.

extern "C" __global__ void square_parts(const T* x, float* partial, int64_t count) {
    PDL_BEGIN;
    float sum = 0;
    for (int64_t id = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; id < count;
         id += (int64_t)gridDim.x * blockDim.x) {
        float v = to_float(x[id]);
        sum += v * v;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// y = weight * sum(x), added to y unless it is the first term. One block.
extern "C" __global__ void add_total(const T* x, float* y, int64_t count, float weight, int first) {
    PDL_BEGIN;
    float sum = 0;
    for (int64_t id = threadIdx.x; id < count; id += blockDim.x) sum += to_float(x[id]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) *y = (first ? 0.0f : *y) + weight * sum;
}
