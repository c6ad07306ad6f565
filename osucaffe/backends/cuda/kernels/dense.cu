// Owns inner products so small that a library's kernels are mostly waiting.
//
// c (m, n) = a (m, k) times b (n, k) transposed, plus bias, through ReLU with that slope (1: none).
// Lanes lie along k, a block's warps too, and each thread sums TILE x TILE elements of c.
// T: element type; VEC: a divisor of k, elements that are loaded at once.
// Blocks: parts of n x parts of m, of 32 x WARPS threads.

#define TILE 4

extern "C" __global__ void product(const T* a, const T* b, const float* bias, T* c, int m, int n,
                                   int k, float slope) {
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
#pragma unroll
    for (int i = 0; i < TILE; ++i)
#pragma unroll
        for (int j = 0; j < TILE; ++j) {
            float whole = warp_sum(sum[i][j]);
            if (lane == i * TILE + j) partial[warp][lane] = whole;
        }
    __syncthreads();
    if (warp || lane >= TILE * TILE) return;
    float value = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) value += partial[i][lane];
    row += lane / TILE, column += lane % TILE;
    if (row >= m || column >= n) return;
    if (bias) value += bias[column];
    c[row * (int64_t)n + column] = from_float<T>(value > 0 ? value : slope * value);
}
