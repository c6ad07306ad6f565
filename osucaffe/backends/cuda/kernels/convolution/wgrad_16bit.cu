// The gradients of the filters of large convolutions with stride 1 in 16 bits, by what Hopper GPUs
// have for four warps together.
// What it is worth: see the tables of make bench-kernels, benchmarks/results/kernels-*.md.
//
// dw[output][tap][channel] = sum over pixels of dy[pixel][output] x[pixel + tap][channel]. Shared
// memory holds, of both, a row of channels for each pixel, in the order in which the instruction
// takes them turned around (a row's vectors are permuted by its number), from wherever a tap says: so
// nothing is copied. A thread has boxes copied, groups of four warps multiply: each has some units, of
// 64 outputs and MERGED taps: what follows a pixel's channels for the instruction are those of the next
// pixel, which the next tap wants, so that dy is read once for a row of the kernel.
//
// A stage: ROWS rows of an image's output, or WIDE pixels of one. Rows of x are PITCH pixels apart,
// those of dy DY_PITCH, the same if there are several: the pixels of x before a row are zeros, and
// those that a tap finds after the row above; where a row is longer than that of the output, dy is
// zero.
// Blocks: (tiles of outputs, parts of the channels, parts of the kernel, groups) x shares of the
// stages; what these have summed is added in a fixed order by a second kernel. Blocks that have the
// same dy take turns, by stages, to sum it for the biases: a product by ones.
//
// BATCH, OH, OW: maps; G: groups; CG, OG: channels and outputs of each; KH, KW, PH, PW: kernel and
// padding; OUTPUTS, BLOCK_C, KROWS: outputs, channels and rows of the kernel of a block; X_WIDTH: channels
// of a row of x, BLOCK_C if MERGED > 1; STEPS, LAST_STEPS: products, of 16 pixels, of a stage and of an
// image's last one; SLOTS: stages in flight; CONSUMERS: groups of four warps that multiply; MULTIPLYING,
// LOADING: registers of a thread of these, and of the others; MULTIPLY(d, a, b), ADD_UP(d, a, ones): the
// instruction; BIAS: there are biases; ONES: two elements; DW: type of dw.

#include "filter_work.cuh"
#include "ring.cuh"

#define THREADS (CONSUMERS * 128 + 128)
#define BLOCKS (OUTPUTS / 64)
#define PARTS ((BLOCK_C + 63) / 64)
#define PIXEL (X_WIDTH / 8)
#define COLUMNS (BLOCK_C * MERGED)
#define UNITS (BLOCKS * KROWS * KW / MERGED)
#define M_TILES ((UNITS + CONSUMERS - 1) / CONSUMERS)
#define ADDED (BIAS ? (BLOCKS + CONSUMERS - 1) / CONSUMERS : 1)

// Pixels in shared memory, those that are copied or those that products read, and vectors.
#define EIGHTS(pixels) (((pixels) + 7) / 8 * 8)
#define DY_COPIED (ROWS * DY_PITCH)
#define X_COPIED ((ROWS + KROWS - 1) * PITCH)
#define DY_PIXELS EIGHTS(MAX(DY_COPIED, STEPS * 16))
#define X_PIXELS EIGHTS(MAX(X_COPIED, STEPS * 16 + (KROWS - 1) * PITCH + KW - 1))
#define DY (BLOCKS * DY_PIXELS * 8)
#define SLOT ((DY + PARTS * X_PIXELS * PIXEL + 63) / 64 * 64)
#define COPIED_BYTES ((BLOCKS * DY_COPIED * 8 + PARTS * X_COPIED * PIXEL) * 16)

extern "C" __global__ void __launch_bounds__(THREADS, 1)
filter_products(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap dy_map,
                float* partial, float* partial_bias) {
    PDL_BEGIN;
    extern __shared__ __align__(1024) uint4 shared[];
    uint4* ones = shared + SLOTS * SLOT;
    Ring<SLOTS> ring(shared_address(ones + 8));
    // What no copy reaches is multiplied by zeros, or is what zeros are.
    for (int i = threadIdx.x; i < SLOTS * SLOT; i += THREADS) shared[i] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x < 8) ones[threadIdx.x] = make_uint4(ONES, ONES, ONES, ONES);
    if (threadIdx.x == 0) ring.init(1, CONSUMERS * 4);
    fence_proxy_async();
    __syncthreads();
    Work w = work();
    int last = w.first + w.count;
    int consumer = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (consumer == CONSUMERS) {
        setmaxnreg_dec<LOADING>();
        if (threadIdx.x != CONSUMERS * 128) return;
#pragma unroll 1
        for (int stage = w.first; stage < last; ++stage, ring.advance()) {
            uint4* slot = shared + ring.place * SLOT;
            int image = stage / STAGES_IMAGE, row = stage % STAGES_IMAGE / ACROSS * ROWS;
            int column = stage % ACROSS * WIDE;
            ring.wait_empty();
            mbarrier_arrive_expect_tx(ring.full(), COPIED_BYTES);
            for (int i = 0; i < BLOCKS; ++i)
                tma_load(slot + i * DY_PIXELS * 8, dy_map, w.group * OG + w.output + i * 64,
                         column, row, image, 0, ring.full());
            for (int i = 0; i < PARTS; ++i)
                tma_load(slot + DY + i * X_PIXELS * PIXEL, x_map, w.group * CG + w.channel + i * 64,
                         column - PW, row + w.row - PH, image, 0, ring.full());
        }
        return;
    }
    setmaxnreg_inc<MULTIPLYING>();
    int lane = threadIdx.x % 32, left[M_TILES], right[M_TILES];
#pragma unroll
    for (int j = 0; j < M_TILES; ++j) {
        int unit = min(consumer * M_TILES + j, UNITS - 1), tap = unit / BLOCKS * MERGED;
        left[j] = unit % BLOCKS * (DY_PIXELS * 8);
        right[j] = (tap / KW * PITCH + tap % KW) * PIXEL;
    }
    float sum[M_TILES][COLUMNS / 2] = {}, bias[ADDED][4] = {};
    uint32_t used = 0;  // the barrier of what may be emptied after the next wait
#pragma unroll 1
    for (int stage = w.first; stage < last; ++stage, ring.advance()) {
        const uint4 *dy = shared + ring.place * SLOT, *x = dy + DY;
        ring.wait_full();
        pin(bias);
        wgmma_fence(sum);
        bool adds = BIAS && stage % BIAS_OWNERS == w.bias_owner;
        int steps = is_last(stage) ? LAST_STEPS : STEPS;
#pragma unroll 1
        for (int step = 0; step < steps; ++step, dy += 128, x += 16 * PIXEL) {
#pragma unroll
            for (int j = 0; j < M_TILES; ++j)
                MULTIPLY(sum[j], transposed_rows_descriptor(dy + left[j], 8, DY_PIXELS * 8),
                         transposed_rows_descriptor(x + right[j], PIXEL,
                                                (MERGED > 1 ? 1 : X_PIXELS) * PIXEL));
#pragma unroll
            for (int j = 0; j < ADDED; ++j)
                if (int block = consumer + j * CONSUMERS; adds && block < BLOCKS)
                    ADD_UP(bias[j],
                           transposed_rows_descriptor(dy + block * (DY_PIXELS * 8), 8, DY_PIXELS * 8),
                           matrix_descriptor(ones, 0, 0));
        }
        wgmma_commit();
        wgmma_wait<1>(sum);
        pin(bias);
        if (lane == 0 && used) mbarrier_arrive(used);
        used = ring.empty();
    }
    wgmma_wait<0>(sum);
    pin(bias);
    int row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    partial += (int64_t)(blockIdx.y * G + w.group) * OG * (KH * KW * CG);
#pragma unroll
    for (int j = 0; j < M_TILES; ++j) {
        int unit = consumer * M_TILES + j, tap = unit / BLOCKS * MERGED;
        int output = w.output + unit % BLOCKS * 64 + row;
        float* to = partial + (w.row * KW + tap) * CG + w.channel + lane % 4 * 2;
#pragma unroll
        for (int k = 0; k < COLUMNS / 4; ++k) {
            int below = output + k % 2 * 8, behind = k / 2 * 8 % BLOCK_C;
            if (unit >= UNITS || below >= OG || w.channel + behind >= CG) continue;
            float pair[2] = {sum[j][k * 2], sum[j][k * 2 + 1]};
            store(to + (int64_t)below * (KH * KW * CG) + k / 2 * 8 / BLOCK_C * CG + behind, pair);
        }
    }
    partial_bias += ((int64_t)(blockIdx.y * BIAS_OWNERS + w.bias_owner) * G + w.group) * OG;
#pragma unroll
    for (int k = 0; BIAS && k < ADDED * 2; ++k) {
        int block = consumer + k / 2 * CONSUMERS, output = w.output + block * 64 + row + k % 2 * 8;
        if (lane % 4 == 0 && block < BLOCKS && output < OG)
            partial_bias[output] = bias[k / 2][k % 2 * 2];
    }
}

// The sum of every `step`-th of that many rows, from one on: of four elements of rows of this length.
__device__ __forceinline__ void sum_rows(const float* from, int first, int rows, int step, int length,
                                         float (&sum)[4]) {
#pragma unroll 8
    for (int row = first; row < rows; row += step) {
        float v[4];
        load(from + (int64_t)row * length, v);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] += v[i];
    }
}

// dw (O, KH, KW, CG) and db (O) (+)= the sums of the shares: four elements of dw by a thread, of db, of
// which there are few, by a warp.
extern "C" __global__ void add_shares(const float* partial, const float* partial_bias, DW* dw,
                                      float* db, int shares, int add, int add_bias) {
    PDL_BEGIN;
    constexpr int COUNT = G * OG * KH * KW * CG, FIRST = (COUNT / 4 + 31) / 32 * 32;
    FOR_EACH(FIRST + BIAS * (G * OG / 4) * 32) {
        float sum[4] = {}, v[4] = {};
        if (id < FIRST) {
            if (id >= COUNT / 4) continue;
            if (add) load(dw + id * 4, v);
            sum_rows(partial + id * 4, 0, shares, 1, COUNT, sum);
#pragma unroll
            for (int i = 0; i < 4; ++i) v[i] += sum[i];
            store(dw + id * 4, v);
            continue;
        }
        int lane = id % 32, at = (id - FIRST) / 32 * 4;
        if (add_bias) load(db + at, v);
        sum_rows(partial_bias + at, lane, shares * BIAS_OWNERS, 32, G * OG, sum);
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] += warp_sum(sum[i]);
        if (lane == 0) store(db + at, v);
    }
}
