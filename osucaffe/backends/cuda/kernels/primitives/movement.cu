// Copies between memory orders, and between parts of tensors.
//
// S, T: element types of the source and the target. accumulate: add to the target.

__device__ __forceinline__ void put(T* y, float value, int accumulate) {
    *y = from_float<T>(accumulate ? value + to_float(*y) : value);
}

// For each of a stack of matrices: y (columns, rows) = x (rows, columns) transposed, by tiles of 32 x 32.
extern "C" __global__ void transpose(const S* x, T* y, int rows, int columns, int accumulate) {
    PDL_BEGIN;
    __shared__ float tile[32][33];
    int64_t base = blockIdx.z * (int64_t)rows * columns;
    int column = blockIdx.x * 32 + threadIdx.x;
    for (int i = threadIdx.y; i < 32; i += 8) {
        int row = blockIdx.y * 32 + i;
        if (row < rows && column < columns)
            tile[i][threadIdx.x] = to_float(x[base + (int64_t)row * columns + column]);
    }
    __syncthreads();
    int row = blockIdx.y * 32 + threadIdx.x;
    for (int i = threadIdx.y; i < 32; i += 8) {
        int to = blockIdx.x * 32 + i;
        if (row < rows && to < columns)
            put(y + base + (int64_t)to * rows + row, tile[threadIdx.x][i], accumulate);
    }
}

#ifdef FEW
// The same for images of FEW channels, each of `pixels`: a thread moves all channels of a pixel.
// FROM_LAST: x has the channels last, y has them first; else the reverse. count: pixels of all images.
extern "C" __global__ void few_channels(const S* x, T* y, int64_t count, int pixels, int accumulate) {
    PDL_BEGIN;
    FOR_EACH(count) {
        int64_t first = id / pixels * pixels * FEW + id % pixels, last = id * FEW;
#pragma unroll
        for (int i = 0; i < FEW; ++i) {
            int64_t from = FROM_LAST ? last + i : first + (int64_t)i * pixels;
            int64_t to = FROM_LAST ? first + (int64_t)i * pixels : last + i;
            put(y + to, to_float(x[from]), accumulate);
        }
    }
}
#endif
