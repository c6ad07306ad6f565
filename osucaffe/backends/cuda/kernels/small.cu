// Owns small convolutions with stride 1, on images with the channels last, by tensor cores in tf32
// (in which 16-bit numbers are exact). For a few channels or a few images libraries take several
// times as long as the data does.
//
// A block keeps the part of the image that it needs, its border of zeros included, and the filters in
// shared memory as floats. Pitches are such that no two lanes of a warp meet in a bank.
//
// S, T: element types of the input and of the output (and the filters); C, H, W: the input;
// O, OH, OW: the output; KH, KW, PH, PW: kernel and padding; SN, SC, SH, SW: the input's strides;
// ROWS: rows of the output in a block; PITCH: floats from pixel to pixel in shared memory.

#define K (KH * KW * C)
#define WIDTH (OW + KW - 1)
#define HEIGHT (ROWS + KH - 1)
#define PATCH (HEIGHT * WIDTH * PITCH)

__device__ __forceinline__ float tf32(float x) {
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
}

// d (16 x 8) += a (16 x 8) b (8 x 8). Lane 4 g + t holds a[g][t], a[g + 8][t], a[g][t + 4],
// a[g + 8][t + 4]; b[t][g], b[t + 4][g]; d[g][2 t], d[g][2 t + 1], d[g + 8][2 t], d[g + 8][2 t + 1].
__device__ __forceinline__ void multiply(float (&d)[4], const float (&a)[4], float b0, float b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// Where the tap k (of kernel row, kernel column, channel) lies behind a window's first pixel.
__device__ __forceinline__ int tap_place(int k) {
    return (k / (KW * C) * WIDTH + k / C % KW) * PITCH + k % C;
}

// Loads what `ROWS` rows of the output from `row` on need of image n.
__device__ __forceinline__ void load_patch(const S* x, float* patch, int n, int row) {
    const S* image = x + n * (int64_t)SN;
    for (int i = threadIdx.x; i < HEIGHT * WIDTH * C / VEC; i += blockDim.x) {
#if VEC > 1
        int c = i % (C / VEC) * VEC, column = i / (C / VEC) % WIDTH, line = i / (C / VEC) / WIDTH;
#else
        int column = i % WIDTH, line = i / WIDTH % HEIGHT, c = i / (WIDTH * HEIGHT);
#endif
        int h = row + line - PH, w = column - PW;
        float v[VEC] = {};
        if (h >= 0 && h < H && w >= 0 && w < W)
            load<S, VEC>(image + (int64_t)h * SH + (int64_t)w * SW + (int64_t)c * SC, v);
#pragma unroll
        for (int j = 0; j < VEC; ++j) patch[(line * WIDTH + column) * PITCH + c + j] = tf32(v[j]);
    }
}

#ifdef SPLITS
// y (N, OH, OW, O) = x correlated with w, plus b, through ReLU with that slope (1: none).
// FLIPPED: w is (C, KH, KW, O) and turned by half a turn, as the gradient to the input wants it.
// SPLITS: warps that share the sum over taps of a tile of 16 pixels; RUN: floats from filter to filter
// in shared memory; TILES: of 16 pixels in a block. Blocks: images x parts of ROWS rows.
#define STEPS ((K + 7) / 8)
#define ACROSS ((O + 7) / 8)
#define SIDE (ACROSS * 8 + 2)

extern "C" __global__ void __launch_bounds__(TILES * SPLITS * 32)
correlate(const S* x, const T* w, const float* b, T* y, float slope) {
    extern __shared__ float shared[];
    float *patch = shared, *filters = shared + PATCH;
    int* place = reinterpret_cast<int*>(filters + ACROSS * 8 * RUN);
    int n = blockIdx.x, row = blockIdx.y * ROWS;
    for (int i = threadIdx.x; i < O * K / WVEC; i += blockDim.x) {
        float v[WVEC];
        load<T, WVEC>(w + i * WVEC, v);
#pragma unroll
        for (int j = 0; j < WVEC; ++j) {
            int at = i * WVEC + j;
#if FLIPPED
            int tap = KH * KW - 1 - at / O % (KH * KW);
            int to = at % O * RUN + tap * C + at / (O * KH * KW);
#else
            int to = at / K * RUN + at % K;
#endif
            filters[to] = tf32(v[j]);
        }
    }
    for (int i = threadIdx.x; i < ACROSS * 8 * (STEPS * 8 - K); i += blockDim.x)
        filters[i / (STEPS * 8 - K) * RUN + K + i % (STEPS * 8 - K)] = 0;
    for (int i = threadIdx.x; i < STEPS * 8; i += blockDim.x) place[i] = i < K ? tap_place(i) : 0;
    load_patch(x, patch, n, row);
    __syncthreads();

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int tile = warp % TILES, split = warp / TILES;
    int first = tile * 16 + g, second = first + 8;
    int p0 = min(first, ROWS * OW - 1), p1 = min(second, ROWS * OW - 1);
    const float* from0 = patch + (p0 / OW * WIDTH + p0 % OW) * PITCH;
    const float* from1 = patch + (p1 / OW * WIDTH + p1 % OW) * PITCH;
    float sum[ACROSS][4] = {};
#pragma unroll 2
    for (int k = split * 8; k < STEPS * 8; k += SPLITS * 8) {
        int near = place[k + t], far = place[k + t + 4];
        float a[4] = {from0[near], from1[near], from0[far], from1[far]};
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) {
            const float* filter = filters + (j * 8 + g) * RUN + k + t;
            multiply(sum[j], a, filter[0], filter[4]);
        }
    }
    if (SPLITS > 1) {
        __syncthreads();
        float* parts = shared;
        if (split) {
#pragma unroll
            for (int j = 0; j < ACROSS; ++j)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    int line = (split - 1) * TILES * 16 + (i < 2 ? first : second);
                    parts[line * SIDE + j * 8 + 2 * t + i % 2] = sum[j][i];
                }
        }
        __syncthreads();
        if (split) return;
        for (int other = 0; other < SPLITS - 1; ++other)
#pragma unroll
            for (int j = 0; j < ACROSS; ++j)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    int line = other * TILES * 16 + (i < 2 ? first : second);
                    sum[j][i] += parts[line * SIDE + j * 8 + 2 * t + i % 2];
                }
    }
    int left = min(ROWS, OH - row) * OW;
    T* to = y + ((int64_t)n * OH + row) * OW * O;
#pragma unroll
    for (int j = 0; j < ACROSS; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int pixel = i < 2 ? first : second, o = j * 8 + 2 * t + i % 2;
            if (pixel >= left || o >= O) continue;
            float value = sum[j][i] + (b ? b[o] : 0.0f);
            to[pixel * O + o] = from_float<T>(value > 0 ? value : slope * value);
        }
}
#endif

#ifdef SHARES
// partial (splits, O, K + 1) = the gradients of filters and, in the last column, of biases, each
// from its share of the images. A unit of work is ROWS rows (a divisor of OH) of an image.
// UNITS: that a block sums; KROWS: rows of the kernel that it treats (blockIdx.y says which);
// WIDE: tiles of 8 taps of a warp; GROUPS x WIDE tiles are all; SHARES: warps that share the sum over
// pixels; OPITCH: floats from pixel to pixel of dy in shared memory.
#define TAPS (KROWS * KW * C)
#define HIGH ((O + 15) / 16)
#define PIXELS (ROWS * OW)
#define STEPS ((PIXELS + 7) / 8)
#define SIDE (GROUPS * WIDE * 8 + 2)

extern "C" __global__ void __launch_bounds__(GROUPS * SHARES * 32)
gradient(const S* x, const T* dy, float* partial, int units) {
    extern __shared__ float shared[];
    float *patch = shared, *maps = shared + PATCH;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int group = warp % GROUPS, share = warp / GROUPS, tap = blockIdx.y * TAPS;
    int place[WIDE];
#pragma unroll
    for (int j = 0; j < WIDE; ++j) {
        int k = (group * WIDE + j) * 8 + g;
        place[j] = k < TAPS ? tap_place(tap + k) : k == TAPS ? -1 : 0;  // -1: the bias, times one
    }
    float sum[HIGH][WIDE][4] = {};
    // Outputs and pixels that do not exist.
    for (int i = threadIdx.x; i < (STEPS * 8 - PIXELS) * OPITCH; i += blockDim.x)
        maps[PIXELS * OPITCH + i] = 0;
    for (int i = threadIdx.x; i < PIXELS * (OPITCH - O); i += blockDim.x)
        maps[i / (OPITCH - O) * OPITCH + O + i % (OPITCH - O)] = 0;
    int last = min((int)(blockIdx.x + 1) * UNITS, units);
    for (int unit = blockIdx.x * UNITS; unit < last; ++unit) {
        int n = unit / (OH / ROWS), row = unit % (OH / ROWS) * ROWS;
        __syncthreads();
        load_patch(x, patch, n, row);
        const T* from = dy + ((int64_t)n * OH + row) * OW * O;
        for (int i = threadIdx.x; i < PIXELS * O / OVEC; i += blockDim.x) {
            float v[OVEC];
            load<T, OVEC>(from + i * OVEC, v);
#pragma unroll
            for (int j = 0; j < OVEC; ++j) {
                int at = i * OVEC + j;
                maps[at / O * OPITCH + at % O] = tf32(v[j]);
            }
        }
        __syncthreads();
        for (int step = share; step < STEPS; step += SHARES) {
            int near = step * 8 + t, far = near + 4;
            const float* image0 = patch;
            const float* image1 = patch;
            if (near < PIXELS) image0 += (near / OW * WIDTH + near % OW) * PITCH;
            if (far < PIXELS) image1 += (far / OW * WIDTH + far % OW) * PITCH;
            float a[HIGH][4];
#pragma unroll
            for (int i = 0; i < HIGH; ++i) {
                const float* map0 = maps + near * OPITCH + i * 16 + g;
                const float* map1 = maps + far * OPITCH + i * 16 + g;
                a[i][0] = map0[0], a[i][1] = map0[8], a[i][2] = map1[0], a[i][3] = map1[8];
            }
#pragma unroll
            for (int j = 0; j < WIDE; ++j) {
                float b0 = place[j] >= 0 ? image0[place[j]] : 1.0f;
                float b1 = place[j] >= 0 ? image1[place[j]] : 1.0f;
#pragma unroll
                for (int i = 0; i < HIGH; ++i) multiply(sum[i][j], a[i], b0, b1);
            }
        }
    }
    if (SHARES > 1) {
        for (int other = 1; other < SHARES; ++other) {
            __syncthreads();
#pragma unroll
            for (int h = 0; h < HIGH; ++h)
#pragma unroll
                for (int j = 0; j < WIDE; ++j)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        int line = h * 16 + g + (i < 2 ? 0 : 8);
                        float* at = shared + line * SIDE + (group * WIDE + j) * 8 + 2 * t + i % 2;
                        if (share == other) *at = sum[h][j][i];
                    }
            __syncthreads();
#pragma unroll
            for (int h = 0; h < HIGH; ++h)
#pragma unroll
                for (int j = 0; j < WIDE; ++j)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        int line = h * 16 + g + (i < 2 ? 0 : 8);
                        float* at = shared + line * SIDE + (group * WIDE + j) * 8 + 2 * t + i % 2;
                        if (share == 0) sum[h][j][i] += *at;
                    }
        }
        if (share) return;
    }
    float* to = partial + blockIdx.x * (int64_t)(O * (K + 1));
#pragma unroll
    for (int h = 0; h < HIGH; ++h)
#pragma unroll
        for (int j = 0; j < WIDE; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int o = h * 16 + g + (i < 2 ? 0 : 8), k = (group * WIDE + j) * 8 + 2 * t + i % 2;
                if (o >= O) continue;
                if (k < TAPS) to[o * (K + 1) + tap + k] = sum[h][j][i];
                else if (k == TAPS && blockIdx.y == 0) to[o * (K + 1) + K] = sum[h][j][i];
            }
}

// dw (O, K), db (O) (+)= the sum of the splits. A block of 32 x 8 threads sums 32 columns; either
// of dw, db may be null.
extern "C" __global__ void finish_gradient(const float* partial, float* dw, float* db, int splits,
                                           int add_w, int add_b) {
    __shared__ float parts[8][32];
    int column = blockIdx.x * 32 + threadIdx.x;
    float sum = 0;
    if (column < O * (K + 1)) {
#pragma unroll 4
        for (int split = threadIdx.y; split < splits; split += 8)
            sum += partial[split * (int64_t)(O * (K + 1)) + column];
    }
    parts[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || column >= O * (K + 1)) return;
#pragma unroll
    for (int i = 1; i < 8; ++i) sum += parts[i][threadIdx.x];
    int o = column / (K + 1), k = column % (K + 1);
    if (k < K && dw) dw[o * K + k] = sum + (add_w ? dw[o * K + k] : 0.0f);
    if (k == K && db) db[o] = sum + (add_b ? db[o] : 0.0f);
}
#endif
