// Inner products so small that a library's kernels are mostly waiting.
// What it is worth: see the tables of make bench-kernels, benchmarks/results/kernels-*.md.

#ifdef VEC
// c (m, n) = a (m, k) times b (n, k) transposed, plus bias, through ReLU with that slope (1: none).
// Lanes lie along k, a block's warps too, and each thread sums TILE x TILE elements of c.
// T: element type; VEC: a divisor of k, elements that are loaded at once.
// Blocks: parts of n x parts of m, of 32 x WARPS threads.

#define TILE 4

extern "C" __global__ void product(const T* a, const T* b, const float* bias, T* c, int m, int n,
                                   int k, float slope) {
    PDL_BEGIN;
    __shared__ float partial[WARPS][TILE * TILE];
    int lane = threadIdx.x, warp = threadIdx.y, row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    float sum[TILE][TILE] = {};
#pragma unroll 2
    for (int at = (warp * 32 + lane) * VEC; at < k; at += WARPS * 32 * VEC) {
        float left[TILE][VEC], right[TILE][VEC];
#pragma unroll
        for (int i = 0; i < TILE; ++i) {
            load<T, VEC>(a + min(row + i, m - 1) * (int64_t)k + at, left[i]);
            load<T, VEC>(b + min(column + i, n - 1) * (int64_t)k + at, right[i]);
        }
#pragma unroll
        for (int i = 0; i < TILE; ++i)
#pragma unroll
            for (int j = 0; j < TILE; ++j)
#pragma unroll
                for (int v = 0; v < VEC; ++v) sum[i][j] += left[i][v] * right[j][v];
    }
    // Lanes exchange halves of the sums that they still have, until each has one: of lane / 2.
    float* own = sum[0];
#pragma unroll
    for (int half = TILE * TILE / 2; half; half /= 2) {
        bool upper = lane & 2 * half;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            float sent = upper ? own[i] : own[i + half], kept = upper ? own[i + half] : own[i];
            own[i] = kept + __shfl_xor_sync(0xffffffff, sent, 2 * half);
        }
    }
    own[0] += __shfl_xor_sync(0xffffffff, own[0], 1);
    if (lane % 2 == 0) partial[warp][lane / 2] = own[0];
    __syncthreads();
    if (warp || lane >= TILE * TILE) return;
    float value = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) value += partial[i][lane];
    row += lane / TILE, column += lane % TILE;
    if (row >= m || column >= n) return;
    if (bias) value += bias[column];
    c[row * (int64_t)n + column] = from_float<T>(relu(value, slope));
}
#endif

#ifdef ROWS
// c (n, k) (+)= a (m, n) transposed times b (m, k), d (n) (+)= the sum of a over m; d may be null.
// TRANSPOSED: a lies as (n, m). relu_output (may be null): c becomes 0 where it is not positive.
// Lanes lie along k, a block's warps along m, and each thread sums ROWS x COLUMNS elements.
// T: element type of a and b; R: of c and relu_output; COLUMNS: a divisor of k, elements that are loaded
// at once; BATCH: rows that are loaded before the first is waited for.
// Blocks: parts of k x parts of n, of 32 x WARPS threads.

#define PITCH 40  // so that no two lanes meet in a bank

extern "C" __global__ void gradient(const T* a, const T* b, const R* relu_output, R* c, float* d, int m,
                                    int n, int k, int add_c, int add_d) {
    PDL_BEGIN;
    __shared__ float parts[WARPS][ROWS][COLUMNS * PITCH];
    __shared__ float biases[WARPS][ROWS];
    int lane = threadIdx.x, warp = threadIdx.y, row = blockIdx.y * ROWS;
    int left = blockIdx.x * 32 * COLUMNS, column = left + lane * COLUMNS;
    float sum[ROWS][COLUMNS] = {}, bias[ROWS] = {};
#pragma unroll 1
    for (int begin = warp; begin < m; begin += WARPS * BATCH) {
        float rows[BATCH][ROWS] = {}, columns[BATCH][COLUMNS] = {};
#pragma unroll
        for (int j = 0; j < BATCH; ++j) {
            int i = begin + j * WARPS;
            if (i >= m) continue;
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                int at = min(row + r, n - 1);
                rows[j][r] = to_float(a[TRANSPOSED ? at * (int64_t)m + i : i * (int64_t)n + at]);
            }
            if (column < k) load<T, COLUMNS>(b + i * (int64_t)k + column, columns[j]);
        }
#pragma unroll
        for (int j = 0; j < BATCH; ++j)
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                bias[r] += rows[j][r];
#pragma unroll
                for (int e = 0; e < COLUMNS; ++e) sum[r][e] += rows[j][r] * columns[j][e];
            }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (lane == 0) biases[warp][r] = bias[r];
#pragma unroll
        for (int e = 0; e < COLUMNS; ++e) parts[warp][r][e * PITCH + lane] = sum[r][e];
    }
    __syncthreads();
    for (int at = warp * 32 + lane; at < ROWS * 32 * COLUMNS; at += WARPS * 32) {
        int r = at / (32 * COLUMNS), e = at % (32 * COLUMNS);
        if (row + r >= n || left + e >= k) continue;
        int64_t to = (row + r) * (int64_t)k + left + e;
        float total = add_c ? to_float(c[to]) : 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; ++i) total += parts[i][r][e % COLUMNS * PITCH + e / COLUMNS];
        c[to] = from_float<R>(relu_output && !(to_float(relu_output[to]) > 0) ? 0.0f : total);
    }
    if (!d || blockIdx.x || warp || lane >= ROWS || row + lane >= n) return;
    float total = add_d ? d[row + lane] : 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) total += biases[i][lane];
    d[row + lane] = total;
}
#endif
