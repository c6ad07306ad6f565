// Owns copies between element types and memory orders, and between parts of tensors.
//
// S, T: element types of the source and the target.

#define FOR_EACH(count) \
    for (int64_t id = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; id < (count); \
         id += (int64_t)gridDim.x * blockDim.x)

extern "C" __global__ void convert(const S* x, T* y, int64_t count, int accumulate) {
    FOR_EACH(count) y[id] = from_float<T>(to_float(x[id]) + (accumulate ? to_float(y[id]) : 0.0f));
}

// For each of `batch` matrices: y (columns, rows) = x (rows, columns) turned, by tiles of 32 x 32.
extern "C" __global__ void transpose(const S* x, T* y, int rows, int columns) {
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
            y[base + (int64_t)to * rows + row] = from_float<T>(tile[threadIdx.x][i]);
    }
}

// y[row][to_offset + i] = x[row][from_offset + i] for i < width: parts of rows of other lengths.
extern "C" __global__ void copy_columns(const S* x, T* y, int64_t rows, int width, int64_t from_pitch,
                                        int64_t from_offset, int64_t to_pitch, int64_t to_offset) {
    FOR_EACH(rows * width) {
        int64_t row = id / width, i = id % width;
        y[row * to_pitch + to_offset + i] = from_float<T>(to_float(x[row * from_pitch + from_offset + i]));
    }
}

extern "C" __global__ void fill(T* y, int64_t count, float value) {
    FOR_EACH(count) y[id] = from_float<T>(value);
}

// The number of the forward pass, from which random numbers are drawn.
extern "C" __global__ void advance(uint64_t* step) { *step += 1; }
