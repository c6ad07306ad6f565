// Owns sums: over the rows of a matrix (bias gradients), of squares, of weighted scalars.
//
// T: element type of x.

// partial[part][column] = the sum of x[rows of part][column], for ROWS_A_PART rows a part.
// A block is 32 columns x 8 rows of threads.
extern "C" __global__ void sum_rows(const T* x, float* partial, int64_t rows, int columns,
                                    int64_t pitch, int64_t rows_a_part) {
    PDL_BEGIN;
    __shared__ float shared[8][33];
    int column = blockIdx.x * 32 + threadIdx.x;
    int64_t first = blockIdx.y * rows_a_part, last = min(first + rows_a_part, rows);
    float sum = 0;
    if (column < columns)
        for (int64_t row = first + threadIdx.y; row < last; row += 8)
            sum += to_float(x[row * pitch + column]);
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < columns) {
#pragma unroll
        for (int i = 1; i < 8; ++i) sum += shared[i][threadIdx.x];
        partial[blockIdx.y * (int64_t)columns + column] = sum;
    }
}

// y[column] (+)= the sum of the parts.
extern "C" __global__ void sum_parts(const float* partial, float* y, int parts, int columns,
                                     int accumulate) {
    PDL_BEGIN;
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    float sum = accumulate ? y[column] : 0.0f;
    for (int part = 0; part < parts; ++part) sum += partial[part * (int64_t)columns + column];
    y[column] = sum;
}

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
