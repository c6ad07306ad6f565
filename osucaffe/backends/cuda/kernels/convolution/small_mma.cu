// Small convolutions with stride 1, on images with the channels last, by tensor cores.
// What it is worth: see the tables of make bench-kernels, benchmarks/results/kernels-*.md.
//
// A block keeps the part of the image that it needs, its border of zeros included, and the filters in
// shared memory, as words: a float (rounded to tf32, in which 16-bit numbers are exact), or PAIR = 2
// neighbours of 16 bits along the axis that is summed over. Pitches (in words) are such that no two
// lanes of a warp meet in a bank.
//
// S, T: element types of the input and of the output (and the filters); C, H, W: the input;
// O, OH, OW: the output; KH, KW, PH, PW: kernel and padding; X_N, X_C, X_H, X_W: the input's strides;
// VEC: neighbouring channels that are loaded at once; ROWS: rows of the output in a block; KROWS:
// rows of the kernel in a block; PITCH: words from pixel to pixel; MMA: the instruction; ONE: the
// word for ones; THREADS: of a block.

#define K (KH * KW * C)
#define WIDTH (OW + KW - 1)
#define HEIGHT (ROWS + KROWS - 1)
#define PATCH ((HEIGHT * WIDTH * PITCH + 3) / 4 * 4)

template <typename E, int N> __device__ __forceinline__ Vector<E, N> get(const E* from) {
    return *reinterpret_cast<const Vector<E, N>*>(from);
}

#if PAIR == 2
__device__ __forceinline__ uint32_t word_of(T low, T high) {
    return low.bits | (uint32_t)high.bits << 16;
}
#endif
template <typename E> __device__ __forceinline__ uint32_t word_of(E low, E high) {
    return word(to_float(low), to_float(high));
}

// The words of neighbours in a vector.
template <typename E, int N> __device__ __forceinline__ void put(uint32_t* to, const Vector<E, N>& v) {
    Vector<uint32_t, N / PAIR> words;
#pragma unroll
    for (int i = 0; i < N / PAIR; ++i)
        words.element[i] = word_of(v.element[i * PAIR], v.element[i * PAIR + PAIR - 1]);
    *reinterpret_cast<Vector<uint32_t, N / PAIR>*>(to) = words;
}

// Vectors whose elements are neighbours along the axis that is summed over; the same if PAIR is 1.
template <typename E, int N> struct Pair { Vector<E, N> low, high; };

template <typename E, int N> __device__ __forceinline__ void put(uint32_t* to, const Pair<E, N>& v) {
    Vector<uint32_t, N> words;
#pragma unroll
    for (int i = 0; i < N; ++i) words.element[i] = word_of(v.low.element[i], v.high.element[i]);
    *reinterpret_cast<Vector<uint32_t, N>*>(to) = words;
}

// What lies between waiting for memory and the products is bound by instructions: few a word count.
//
// Of that many vectors those that a thread loads before it waits for the first: up to 8, in equal parts.
__device__ constexpr int at_once(int count) {
    int rounds = (count + THREADS - 1) / THREADS, parts = (rounds + 7) / 8;
    return (rounds + parts - 1) / parts;
}

// The block loads what `load` gives for 0 ... count - 1, and stores it. After the last comes the last
// again. MAX_COUNT: of what count may be: if no thread comes twice, what is loaded next need not wait.
template <int MAX_COUNT, typename Load, typename Store>
__device__ __forceinline__ void copy(int count, Load load, Store store) {
    constexpr int BATCH = at_once(MAX_COUNT);
    auto batch = [&](int begin) {
        decltype(load(0)) v[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) v[i] = load(min(begin + i * THREADS, count - 1));
#pragma unroll
        for (int i = 0; i < BATCH; ++i) store(min(begin + i * THREADS, count - 1), v[i]);
    };
    if constexpr (MAX_COUNT <= BATCH * THREADS) {
        batch(threadIdx.x);
    } else {
#pragma unroll 1
        for (int begin = threadIdx.x; begin < count; begin += BATCH * THREADS) batch(begin);
    }
}

// The block calls this for all places of a matrix: neighbouring threads have neighbouring columns.
template <int COLUMNS, typename F> __device__ __forceinline__ void for_each_place(int rows, F call) {
    constexpr int BESIDE = COLUMNS < THREADS ? COLUMNS : THREADS, BELOW = THREADS / BESIDE;
    if (threadIdx.x >= BESIDE * BELOW) return;
    for (int column = threadIdx.x % BESIDE; column < COLUMNS; column += BESIDE)
#pragma unroll 4
        for (int row = threadIdx.x / BESIDE; row < rows; row += BELOW) call(row, column);
}

// Neighbouring channels of a pixel of the input, zero outside.
__device__ __forceinline__ Vector<S, VEC> pixel(const S* image, int h, int w, int c) {
    Vector<S, VEC> v = {};
    if (h >= 0 && h < H && w >= 0 && w < W)
        v = get<S, VEC>(image + (int64_t)h * X_H + (int64_t)w * X_W + (int64_t)c * X_C);
    return v;
}

// Where the i-th of the vectors of a patch lies: neighbours in memory go to neighbouring threads.
struct PatchIndex { int line, column, c; };
__device__ __forceinline__ PatchIndex patch_index(int i) {
#if VEC > 1
    return {i / (C / VEC) / WIDTH, i / (C / VEC) % WIDTH, i % (C / VEC) * VEC};
#else
    return {i / WIDTH % HEIGHT, i % WIDTH, i / (WIDTH * HEIGHT)};
#endif
}

// A lane's part of tiles of sums to shared memory, whose rows are STRIDE floats apart.
template <int STRIDE, int M, int N>
__device__ __forceinline__ void store_sums(float* to, const float (&sum)[M][N][4]) {
#pragma unroll
    for (int h = 0; h < M; ++h)
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
            for (int i = 0; i < 4; i += 2)
                *reinterpret_cast<float2*>(to + (h * 16 + i * 4) * STRIDE + j * 8) =
                    make_float2(sum[h][j][i], sum[h][j][i + 1]);
}

#ifdef SPLITS
// y (N, OH, OW, O) = x correlated with w, plus b, through ReLU with that slope (1: none). A word is
// PAIR channels. FLIPPED: w is (C, KH, KW, O) and rotated by 180 degrees, as the gradient to the
// input wants it. A warp computes M_TILES tiles of 16 pixels; SPLITS: warps that share the sum over
// taps of these; TILES: of M_TILES x 16 pixels in a block; BLOCK_K: the outputs of a block; FILTER_PITCH: words from
// filter to filter; WVEC: weights that are loaded at once; MASKED: y becomes 0 where `relu_output`, which
// lies as y does, is not positive.
// Blocks: images x parts of ROWS rows x parts of BLOCK_K outputs.
#define CHANNELS (C / PAIR)
#define WORDS (K / PAIR)
#define STEPS ((WORDS + 7) / 8)
#define ACROSS ((BLOCK_K + 7) / 8)
#define SIDE (ACROSS * 8 + 2)
#if FLIPPED
#define FILTERS (CHANNELS * FILTER_PITCH + ACROSS * 8)
#else
#define FILTERS (ACROSS * 8 * FILTER_PITCH)
#endif
// The order of the sum is free: where neighbouring words are of one tap, a lane loads two at once.
#define NEIGHBOURS (CHANNELS % 2 == 0)

__device__ __forceinline__ void load_patch(const S* image, uint32_t* patch, int top) {
    constexpr int COUNT = HEIGHT * WIDTH * C / VEC;
    copy<COUNT>(
        COUNT,
        [&](int i) {
            PatchIndex at = patch_index(i);
            return pixel(image, top + at.line, at.column - PW, at.c);
        },
        [&](int i, const Vector<S, VEC>& v) {
            PatchIndex at = patch_index(i);
            put(patch + (at.line * WIDTH + at.column) * PITCH + at.c / PAIR, v);
        });
}

__device__ __forceinline__ void load_filters(const T* w, uint32_t* filters, int output) {
    int own = min(BLOCK_K, O - output);
#if FLIPPED
    constexpr int ROW = KH * KW * BLOCK_K / WVEC, COUNT = CHANNELS * ROW;
    copy<COUNT>(
        COUNT,
        [&](int i) {
            int at = i % ROW * WVEC;
            // Outputs that do not exist are never used: any number will do.
            const T* from = w + i / ROW * PAIR * KH * KW * O + at / BLOCK_K * O + output +
                            min(at % BLOCK_K, own - WVEC);
            Vector<T, WVEC> low = get<T, WVEC>(from);
            return Pair<T, WVEC>{low, PAIR == 2 ? get<T, WVEC>(from + KH * KW * O) : low};
        },
        [&](int i, const Pair<T, WVEC>& v) { put(filters + i / ROW * FILTER_PITCH + i % ROW * WVEC, v); });
    if (threadIdx.x < ACROSS * 8) filters[CHANNELS * FILTER_PITCH + threadIdx.x] = 0;
#else
    copy<BLOCK_K * K / WVEC>(
        own * K / WVEC, [&](int i) { return get<T, WVEC>(w + output * K + i * WVEC); },
        [&](int i, const Vector<T, WVEC>& v) {
#if K % WVEC == 0
            put(filters + i / (K / WVEC) * FILTER_PITCH + i % (K / WVEC) * (WVEC / PAIR), v);
#else  // a vector may end in another filter than it begins in; they come in pairs all the same
#pragma unroll
            for (int j = 0; j < WVEC; j += PAIR) {
                int at = i * WVEC + j;
                filters[at / K * FILTER_PITCH + at % K / PAIR] =
                    word_of(v.element[j], v.element[j + PAIR - 1]);
            }
#endif
        });
    if (STEPS * 8 > WORDS)
        for (int i = threadIdx.x; i < ACROSS * 8 * 8; i += THREADS)
            if (i % 8 < STEPS * 8 - WORDS) filters[i / 8 * FILTER_PITCH + WORDS + i % 8] = 0;
#endif
}

// Where the words of a step lie: lane 4 g + t has the words t and t + 4 of it, or 2 t and 2 t + 1.
// x: from a pixel's first word in the patch; y: in the filters, if they are flipped.
__device__ __forceinline__ void load_places(int2* place) {
    constexpr int EACH = NEIGHBOURS ? 2 : 1;
    for (int i = threadIdx.x; i < STEPS * 8 / EACH; i += THREADS) {
        int tap = i * EACH / CHANNELS, c = i * EACH % CHANNELS;
        bool real = i * EACH < WORDS;
        int to = (tap / KW * WIDTH + tap % KW) * PITCH + c;
        int filter = real ? c * FILTER_PITCH + (KH * KW - 1 - tap) * BLOCK_K : CHANNELS * FILTER_PITCH;
        place[i] = make_int2(real ? to : 0, filter);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
correlate(const S* x, const T* w, const float* b, const T* relu_output, T* y, float slope) {
    pdl_wait();
    extern __shared__ uint32_t shared[];
    __shared__ float bias[BLOCK_K];
    uint32_t *patch = shared, *filters = shared + PATCH;
    int2* place = reinterpret_cast<int2*>(filters + FILTERS);
    int n = blockIdx.x, row = blockIdx.y * ROWS, output = blockIdx.z * BLOCK_K;
    load_patch(x + n * (int64_t)X_N, patch, row - PH);
    load_filters(w, filters, output);
    load_places(place);
    for (int i = threadIdx.x; i < min(BLOCK_K, O - output); i += THREADS)
        bias[i] = b ? b[output + i] : 0.0f;
    __syncthreads();

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int tile = warp % TILES, split = warp / TILES;
    const uint32_t* from[M_TILES][2];
#pragma unroll
    for (int d = 0; d < M_TILES; ++d)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            int p = min((tile * M_TILES + d) * 16 + i * 8 + g, ROWS * OW - 1);
            from[d][i] = patch + (p / OW * WIDTH + p % OW) * PITCH;
        }
    float sum[M_TILES][ACROSS][4] = {};
#pragma unroll 2
    for (int k = split * 8; k < STEPS * 8; k += SPLITS * 8) {
        uint32_t a[M_TILES][4];
#if NEIGHBOURS
        int2 near = place[k / 2 + t];
        int far_filter = near.y + (STEPS * 8 == WORDS || k + 2 * t < WORDS ? FILTER_PITCH : 0);
#pragma unroll
        for (int d = 0; d < M_TILES; ++d)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                uint2 v = *reinterpret_cast<const uint2*>(from[d][i] + near.x);
                a[d][i] = v.x, a[d][i + 2] = v.y;
            }
#else
        int2 near = place[k + t], far = place[k + t + 4];
        int far_filter = far.y;
#pragma unroll
        for (int d = 0; d < M_TILES; ++d)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                a[d][i] = from[d][i][near.x], a[d][i + 2] = from[d][i][far.x];
#endif
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) {
#if FLIPPED
            uint32_t b0 = filters[near.y + j * 8 + g], b1 = filters[far_filter + j * 8 + g];
#elif NEIGHBOURS
            uint2 both =
                *reinterpret_cast<const uint2*>(filters + (j * 8 + g) * FILTER_PITCH + k + 2 * t);
            uint32_t b0 = both.x, b1 = both.y;
#else
            const uint32_t* filter = filters + (j * 8 + g) * FILTER_PITCH + k + t;
            uint32_t b0 = filter[0], b1 = filter[4];
#endif
#pragma unroll
            for (int d = 0; d < M_TILES; ++d) multiply(sum[d][j], a[d], b0, b1);
        }
    }
    pdl_launch_next();
    // Sums of all warps to shared memory, from where threads take what lies together in y.
    constexpr int PARTIAL = TILES * M_TILES * 16 * SIDE, VECTOR = O % 2 ? 1 : 2;
    float* parts = reinterpret_cast<float*>(shared);
    __syncthreads();
    store_sums<SIDE>(parts + split * PARTIAL + (tile * M_TILES * 16 + g) * SIDE + 2 * t, sum);
    __syncthreads();
    int own = min(BLOCK_K, O - output);
    int64_t first = ((int64_t)n * OH + row) * OW * O + output;
    for_each_place<BLOCK_K / VECTOR>(min(ROWS, OH - row) * OW, [&](int pixel, int column) {
        int o = column * VECTOR;
        if (o >= own) return;
        const float* from = parts + pixel * SIDE + o;
        float v[VECTOR];
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) v[j] = bias[o + j];
#pragma unroll
        for (int k = 0; k < SPLITS; ++k) {
            auto part = get<float, VECTOR>(from + k * PARTIAL);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) v[j] += part.element[j];
        }
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) v[j] = relu(v[j], slope);
#if MASKED
        float mask[VECTOR];
        load<T, VECTOR>(relu_output + first + pixel * O + o, mask);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) v[j] = relu_backward(v[j], mask[j]);
#endif
        store<T, VECTOR>(y + first + pixel * O + o, v);
    });
}
#endif

#ifdef SHARES
// partial (splits, O * K + O) = the gradients of filters, then those of biases, each from its share
// of the images. A word is PAIR neighbouring pixels of a row; in the patch every pixel begins one. A
// unit of work is ROWS rows (a divisor of OH) of an image. UNITS: that a block sums; blockIdx.y:
// which rows of the kernel it treats; WIDE: tiles of 8 taps of a warp, GROUPS x WIDE tiles are all;
// SHARES: warps that share the sum over pixels; OPITCH: words from one word of pixels to the next of
// dy; OVEC: neighbouring maps that are loaded at once.
#define TAPS (KROWS * KW * C)
#define HIGH ((O + 15) / 16)
#define PIXELS (ROWS * OW)
#define WORDS (PIXELS / PAIR)
#define STEPS ((WORDS + 7) / 8)
#define SIDE (GROUPS * WIDE * 8 + 2)

__device__ __forceinline__ void load_unit(const S* x, const T* dy, uint32_t* patch, uint32_t* maps,
                                          int unit) {
    int n = unit / (OH / ROWS), row = unit % (OH / ROWS) * ROWS;
    const S* image = x + n * (int64_t)X_N;
    int top = row + blockIdx.y * KROWS - PH;
    const T* from = dy + ((int64_t)n * OH + row) * OW * O;
    copy<WORDS * O / OVEC>(
        WORDS * O / OVEC,
        [&](int i) {
            int at = i / (O / OVEC) * PAIR, o = i % (O / OVEC) * OVEC;
            return Pair<T, OVEC>{get<T, OVEC>(from + at * O + o),
                                 get<T, OVEC>(from + (at + PAIR - 1) * O + o)};
        },
        [&](int i, const Pair<T, OVEC>& v) {
            put(maps + i / (O / OVEC) * OPITCH + i % (O / OVEC) * OVEC, v);
        });
    copy<HEIGHT * WIDTH * C / VEC>(
        HEIGHT * WIDTH * C / VEC,
        [&](int i) {
            PatchIndex at = patch_index(i);
            int line = top + at.line, column = at.column - PW;
            return Pair<S, VEC>{pixel(image, line, column, at.c),
                                pixel(image, line, column + (PAIR - 1), at.c)};
        },
        [&](int i, const Pair<S, VEC>& v) {
            PatchIndex at = patch_index(i);
            put(patch + (at.line * WIDTH + at.column) * PITCH + at.c, v);
        });
}

extern "C" __global__ void __launch_bounds__(THREADS)
gradient(const S* x, const T* dy, float* partial, int units) {
    pdl_wait();
    extern __shared__ uint32_t shared[];
    uint32_t *patch = shared, *maps = shared + PATCH;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int group = warp % GROUPS, share = warp / GROUPS, tap = blockIdx.y * TAPS;
    int place[WIDE];
    bool bias[WIDE];
#pragma unroll
    for (int j = 0; j < WIDE; ++j) {
        int k = (group * WIDE + j) * 8 + g;
        bias[j] = k == TAPS;
        place[j] = k < TAPS ? (k / (KW * C) * WIDTH + k / C % KW) * PITCH + k % C : 0;
    }
    float sum[HIGH][WIDE][4] = {};
    // Maps and pixels that do not exist.
    if (STEPS * 8 > WORDS)
        for (int i = threadIdx.x; i < (STEPS * 8 - WORDS) * OPITCH; i += THREADS)
            maps[WORDS * OPITCH + i] = 0;
    int last = min((int)(blockIdx.x + 1) * UNITS, units);
    for (int unit = blockIdx.x * UNITS; unit < last; ++unit) {
        __syncthreads();
        load_unit(x, dy, patch, maps, unit);
        __syncthreads();
#pragma unroll 2
        for (int step = share; step < STEPS; step += SHARES) {
            int near = step * 8 + t, far = near + 4;
            int p0 = min(near, WORDS - 1) * PAIR, p1 = min(far, WORDS - 1) * PAIR;
            const uint32_t* image0 = patch + (p0 / OW * WIDTH + p0 % OW) * PITCH;
            const uint32_t* image1 = patch + (p1 / OW * WIDTH + p1 % OW) * PITCH;
            uint32_t a[HIGH][4];
#pragma unroll
            for (int i = 0; i < HIGH; ++i) {
                const uint32_t* map0 = maps + near * OPITCH + i * 16 + g;
                const uint32_t* map1 = maps + far * OPITCH + i * 16 + g;
                a[i][0] = map0[0], a[i][1] = map0[8], a[i][2] = map1[0], a[i][3] = map1[8];
            }
#pragma unroll
            for (int j = 0; j < WIDE; ++j) {
                uint32_t b0 = image0[place[j]], b1 = image1[place[j]];
                if (bias[j]) b0 = b1 = ONE;
#pragma unroll
                for (int i = 0; i < HIGH; ++i) multiply(sum[i][j], a[i], b0, b1);
            }
        }
    }
    pdl_launch_next();
    constexpr int PARTIAL = HIGH * 16 * SIDE;
    float* parts = reinterpret_cast<float*>(shared);
    __syncthreads();
    store_sums<SIDE>(parts + share * PARTIAL + g * SIDE + group * WIDE * 8 + 2 * t, sum);
    __syncthreads();
    float* to = partial + blockIdx.x * (int64_t)(O * K + O);
    for_each_place<TAPS + 1>(O, [&](int o, int k) {
        float total = 0;
#pragma unroll
        for (int j = 0; j < SHARES; ++j) total += parts[j * PARTIAL + o * SIDE + k];
        if (k < TAPS) to[o * K + tap + k] = total;
        if (k == TAPS && blockIdx.y == 0) to[O * K + o] = total;
    });
}
#endif
