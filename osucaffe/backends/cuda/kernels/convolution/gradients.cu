// Sums over the rows of a matrix, and what finishes the gradients of a layer's parameters.

#ifdef COLUMNS
// partial[part][column] = the sum of x[rows of part][column], for `share` rows a part.
// T: element type; VEC: elements that a thread loads at once; COLUMNS: a multiple of VEC; GROUPS:
// vectors of a row that a block treats. A block is GROUPS x LANES threads.
extern "C" __global__ void sum_rows(const T* x, float* partial, int64_t rows, int64_t share,
                                    int accumulate) {
    PDL_BEGIN;
    __shared__ float shared[LANES][GROUPS * VEC];
    int lane = threadIdx.x / GROUPS, group = threadIdx.x % GROUPS;
    int column = (blockIdx.x * GROUPS + group) * VEC;
    int64_t first = blockIdx.y * share, last = min(first + share, rows);
    float sum[VEC] = {};
    if (column < COLUMNS) {
        const T* from = x + column;
        int64_t row = first + lane;
        for (; row + 3 * LANES < last; row += 4 * LANES) {
            float v[4][VEC];
#pragma unroll
            for (int i = 0; i < 4; ++i) load<T, VEC>(from + (row + i * LANES) * COLUMNS, v[i]);
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < VEC; ++j) sum[j] += v[i][j];
        }
        for (; row < last; row += LANES) {
            float v[VEC];
            load<T, VEC>(from + row * COLUMNS, v);
#pragma unroll
            for (int j = 0; j < VEC; ++j) sum[j] += v[j];
        }
    }
#pragma unroll
    for (int j = 0; j < VEC; ++j) shared[lane][group * VEC + j] = sum[j];
    __syncthreads();
    for (int i = threadIdx.x; i < GROUPS * VEC; i += GROUPS * LANES) {
        int to = blockIdx.x * GROUPS * VEC + i;
        if (to >= COLUMNS) break;
        float total = 0;
#pragma unroll 4
        for (int row = 0; row < LANES; ++row) total += shared[row][i];
        float* place = partial + blockIdx.y * (int64_t)COLUMNS + to;
        *place = total + (accumulate ? *place : 0.0f);
    }
}
#else
// y (+)= the sums of the columns of partial (parts, columns); those from `first` on go to z, which may
// be null, as y may. A block of 32 x 8 threads sums 32 columns.
extern "C" __global__ void sum_parts(const float* partial, float* y, float* z, int parts, int columns,
                                     int first, int add_y, int add_z) {
    PDL_BEGIN;
    __shared__ float shared[8][32];
    int column = blockIdx.x * 32 + threadIdx.x;
    float sum = 0;
    if (column < columns) {
        for (int begin = threadIdx.y; begin < parts; begin += 8 * 16) {
            float v[16];  // all of them are loaded before the first is waited for
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                int part = begin + i * 8;
                v[i] = part < parts ? partial[part * (int64_t)columns + column] : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < 16; ++i) sum += v[i];
        }
    }
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || column >= columns) return;
#pragma unroll
    for (int i = 1; i < 8; ++i) sum += shared[i][threadIdx.x];
    float* to = column < first ? y : z;
    int add = column < first ? add_y : add_z, at = column < first ? column : column - first;
    if (to) to[at] = sum + (add ? to[at] : 0.0f);
}
#endif
