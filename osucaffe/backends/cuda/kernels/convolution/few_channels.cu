// Convolutions of images with few channels, such as a net's input, by tensor cores.
// What it is worth: see the tables of make bench-kernels, benchmarks/results/kernels-*.md.
//
// The output takes the time: it is many times as large as the image. A block holds filters in
// registers, and goes from tile to tile of the output; while it computes one, it loads what the next
// needs. In shared memory a pixel is four elements: its channels, and zeros.
//
// S, T: element types of the image, and of filters and output; C, H, W: the image; O, OH, OW: the
// output; BLOCK_K: the outputs of a block; KH, KW, SH, SW, PH, PW: kernel, stride and padding; ROWS,
// COLUMNS: a tile, a row for each warp; BLOCKS: for each multiprocessor.

#define WORDS_A_PIXEL (4 / PAIR)
#define WORDS (KH * KW * WORDS_A_PIXEL)
#define STEPS ((WORDS + 7) / 8)
#define HEIGHT ((ROWS - 1) * SH + KH)
#define WIDTH ((COLUMNS - 1) * SW + KW)
#define THREADS (ROWS * 32)
#define EACH ((HEIGHT * WIDTH + THREADS - 1) / THREADS)
#define DOWN ((OH + ROWS - 1) / ROWS)
#define ACROSS ((OW + COLUMNS - 1) / COLUMNS)

// The outputs of the matrix tiles are such that a lane has VEC neighbours in PARTS of them, which it
// stores at once, beside those of the next lane.
#define TILES (BLOCK_K / 8)
#define VEC (16 / (int)sizeof(T))
#define PARTS (VEC / 2)
__device__ __forceinline__ int output_of(int tile, int column) {
    return tile / PARTS * 4 * VEC + column / 2 * VEC + tile % PARTS * 2 + column % 2;
}

typedef Vector<uint32_t, WORDS_A_PIXEL> Pixel;
struct Strides { int64_t n, c, h, w; };

// What this thread loads of the image for a tile: zeros outside.
__device__ __forceinline__ void fetch(const S* x, Strides strides, int tile,
                                      float (&values)[EACH][4]) {
    int top = tile / ACROSS % DOWN * (ROWS * SH) - PH, left = tile % ACROSS * (COLUMNS * SW) - PW;
    const S* image = x + (int64_t)(tile / (ACROSS * DOWN)) * strides.n;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        int pixel = threadIdx.x + i * THREADS;
        int row = top + pixel / WIDTH, column = left + pixel % WIDTH;
        bool inside = pixel < HEIGHT * WIDTH && (unsigned)row < H && (unsigned)column < W;
        const S* from = image + row * strides.h + column * strides.w;
#pragma unroll
        for (int c = 0; c < 4; ++c)
            values[i][c] = c < C && inside ? to_float(from[c * strides.c]) : 0.0f;
    }
}

__device__ __forceinline__ void put(const float (&values)[EACH][4], Pixel* patch) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        int pixel = threadIdx.x + i * THREADS;
        if (pixel >= HEIGHT * WIDTH) continue;
        Pixel words;
#pragma unroll
        for (int j = 0; j < WORDS_A_PIXEL; ++j)
            words.element[j] = word(values[i][j * PAIR], values[i][j * PAIR + PAIR - 1]);
        patch[pixel] = words;
    }
}

// A word of a filter (KH, KW, C).
__device__ __forceinline__ uint32_t filter_word(const T* filter, int at) {
    int tap = at / WORDS_A_PIXEL, c = at % WORDS_A_PIXEL * PAIR, last = c + PAIR - 1;
    return word(tap < KH * KW && c < C ? to_float(filter[tap * C + c]) : 0.0f,
                tap < KH * KW && last < C ? to_float(filter[tap * C + last]) : 0.0f);
}

// y (N, OH, OW, O) = x correlated with w (O, KH, KW, C), plus b, through ReLU with that slope (1:
// none). tiles: of all images.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
few_channels(const S* x, const T* w, const float* b, T* y, int tiles, int64_t sn, int64_t sc,
             int64_t sh, int64_t sw, float slope) {
    pdl_wait();
    __shared__ Pixel patches[2][HEIGHT * WIDTH];
    __shared__ float2 bias[TILES][4];
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    int output = blockIdx.y * BLOCK_K;
    if (warp == 0 && g < TILES) {
        int first = output + output_of(g, 2 * t);
        bias[g][t] = b ? make_float2(b[first], b[first + 1]) : make_float2(0.0f, 0.0f);
    }
    uint32_t filters[STEPS][TILES][2];
    int places[STEPS][2];
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            int at = step * 8 + i * 4 + t, tap = min(at / WORDS_A_PIXEL, KH * KW - 1);
            places[step][i] =
                (tap / KW * WIDTH + tap % KW) * WORDS_A_PIXEL + at % WORDS_A_PIXEL;
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
                filters[step][tile][i] =
                    filter_word(w + (output + output_of(tile, g)) * (KH * KW * C), at);
        }
    Strides strides = {sn, sc, sh, sw};
    float values[EACH][4];
    fetch(x, strides, blockIdx.x, values);
    put(values, patches[0]);
    __syncthreads();
    int turn = 0;
    for (int id = blockIdx.x; id < tiles; id += gridDim.x, turn ^= 1) {
        bool more = id + gridDim.x < tiles;
        if (more) fetch(x, strides, id + gridDim.x, values);
        int row = id / ACROSS % DOWN * ROWS + warp, left = id % ACROSS * COLUMNS;
        T* line = y + (int64_t)((id / (ACROSS * DOWN) * OH + row) * OW) * O + output + t * VEC;
#pragma unroll 1
        for (int m = 0; m < COLUMNS; m += 16) {
            const uint32_t* corner = patches[turn][warp * SH * WIDTH + (m + g) * SW].element;
            float sum[TILES][4];
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                float2 begin = bias[tile][t];
                sum[tile][0] = sum[tile][2] = begin.x;
                sum[tile][1] = sum[tile][3] = begin.y;
            }
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                uint32_t a[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    int at = step * 8 + i / 2 * 4 + t;
                    uint32_t found = corner[places[step][i / 2] + i % 2 * 8 * SW * WORDS_A_PIXEL];
                    // NaN * 0 is NaN: zero the padded taps.
                    a[i] = at < WORDS ? found : 0;
                }
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile)
                    multiply(sum[tile], a, filters[step][tile][0], filters[step][tile][1]);
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int column = left + m + half * 8 + g;
                if (row >= OH || column >= OW) continue;
#pragma unroll
                for (int first = 0; first < TILES; first += PARTS) {
                    float v[VEC];
#pragma unroll
                    for (int i = 0; i < VEC; ++i)
                        v[i] = relu(sum[first + i / 2][half * 2 + i % 2], slope);
                    store<T, VEC>(line + (int64_t)column * O + first * 8, v);
                }
            }
        }
        if (more) put(values, patches[turn ^ 1]);
        __syncthreads();
    }
    pdl_launch_next();
}
