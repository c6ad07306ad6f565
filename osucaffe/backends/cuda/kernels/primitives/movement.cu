// Owns copies between memory orders, and between parts of tensors.
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
// The same for matrices of FEW rows: a thread turns one column. count: columns of all matrices.
extern "C" __global__ void few_rows(const S* x, T* y, int64_t count, int columns, int accumulate) {
    PDL_BEGIN;
    FOR_EACH(count) {
        const S* from = x + id / columns * columns * FEW + id % columns;
#pragma unroll
        for (int i = 0; i < FEW; ++i)
            put(y + id * FEW + i, to_float(from[(int64_t)i * columns]), accumulate);
    }
}

// The same for matrices of FEW columns: a thread turns one row. count: rows of all matrices.
extern "C" __global__ void few_columns(const S* x, T* y, int64_t count, int rows, int accumulate) {
    PDL_BEGIN;
    FOR_EACH(count) {
        T* to = y + id / rows * rows * FEW + id % rows;
#pragma unroll
        for (int i = 0; i < FEW; ++i)
            put(to + (int64_t)i * rows, to_float(x[id * FEW + i]), accumulate);
    }
}
#endif

#ifdef VEC
// Parts of rows of other lengths: y[row][to_offset + i] = x[row][from_offset + i] for
// i < width * VEC; zero where `relu_output` (null, or laid out as y) is not positive.
extern "C" __global__ void copy_columns(const S* x, T* y, const P* relu_output, int64_t rows, int width,
                                        int64_t from_pitch, int64_t from_offset, int64_t to_pitch,
                                        int64_t to_offset) {
    PDL_BEGIN;
    FOR_EACH(rows * width) {
        int64_t row = id / width, i = id % width * VEC;
        float values[VEC];
        load<S, VEC>(x + row * from_pitch + from_offset + i, values);
        int64_t to = row * to_pitch + to_offset + i;
        if (relu_output) {
            float mask[VEC];
            load<P, VEC>(relu_output + to, mask);
#pragma unroll
            for (int j = 0; j < VEC; ++j) values[j] = behind_relu(values[j], mask[j]);
        }
        store<T, VEC>(y + to, values);
    }
}
#endif
