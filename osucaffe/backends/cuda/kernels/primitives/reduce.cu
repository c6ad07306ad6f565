// Sums of squares and of products, in two steps. T: element type of x; G: of g.

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

#ifdef G
// Of each chunk (its start and stop), one a block, the sums of x^2, of g^2 and of x * g.
extern "C" __global__ void chunk_sums(const T* x, const G* g, const int64_t* cuts, float* partial) {
    PDL_BEGIN;
    float xx = 0, gg = 0, xg = 0;
    int64_t stop = cuts[2 * blockIdx.x + 1];
    for (int64_t at = cuts[2 * blockIdx.x] + threadIdx.x; at < stop; at += blockDim.x) {
        float a = to_float(x[at]), b = to_float(g[at]);
        xx += a * a, gg += b * b, xg += a * b;
    }
    xx = block_sum(xx), gg = block_sum(gg), xg = block_sum(xg);
    if (threadIdx.x == 0) {
        float* sums = partial + 3 * blockIdx.x;
        sums[0] = xx, sums[1] = gg, sums[2] = xg;
    }
}
#endif

// The three sums of each segment, whose chunks are firsts[segment] .. firsts[segment + 1] - 1.
extern "C" __global__ void total_sums(const float* partial, const int64_t* firsts, float* y) {
    PDL_BEGIN;
    for (int kind = 0; kind < 3; kind++) {
        float sum = 0;
        for (int64_t at = firsts[blockIdx.x] + threadIdx.x; at < firsts[blockIdx.x + 1];
             at += blockDim.x)
            sum += partial[3 * at + kind];
        sum = block_sum(sum);
        if (threadIdx.x == 0) y[3 * blockIdx.x + kind] = sum;
    }
}
