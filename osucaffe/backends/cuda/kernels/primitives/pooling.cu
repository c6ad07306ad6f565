// Pooling over two spatial axes of NHWC tensors, VEC channels a thread.
//
// T: element type; VEC: channels a thread (a divisor of C); C H W OH OW: extents of the large image
// and the small; KH KW SH SW PH PW: window, stride, padding; TILE_H TILE_W: pixels that a thread
// writes, TILES_H TILES_W: how many such tiles an image has, and BEFORE_H BEFORE_W: by how much the
// first begins before it; MAXIMUM: whether the maximum is taken, or the mean; BACKWARD: which kernel there
// is; NORMALIZED: whether maxima are taken of what batch normalization makes of x; NOTE: type of what is
// noted of a maximum. All are constants, so that no division is left to the run. The backward kernel
// gathers: each input element adds what the windows over it send, in a fixed order, so that results do not
// depend on how threads are scheduled.
//
// Maximum pooling is bound by integer instructions, not by memory. So a thread has a tile of pixels: what
// was read serves several, maxima across a row are sought once for all windows that have them, and as
// backward a tile begins where a window does, the compiler knows at which tap each pixel is. Taps outside
// the image are not a special case, and places are told in 32 bits. On an H200, 3 x 3 windows over 128
// images, forward: in fp32 two apart over 64 channels of 112 x 112 130 us (209 before the last two; 128
// at a copy's inv_std), one apart over 192 of 28 x 28 52 (106; 41), over 512 of 14 x 14 37 (70; 27).

#define GROUPS (C / VEC)

#if KH * KW <= 64
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("unroll 1")
#endif

// The place of a thread: its vector of channels, and its tile of an image; where its channels of the
// image's first pixel are, in the large one and in the small.
#define PLACE \
    uint32_t number = (uint32_t)id; \
    int g = number % GROUPS; \
    uint32_t tile = number / GROUPS; \
    int w = tile % TILES_W, h = tile / TILES_W % TILES_H; \
    int64_t n = tile / (TILES_W * TILES_H); \
    int64_t large = n * H * W * C + g * VEC, small = n * OH * OW * C + g * VEC;

// Where a pixel is after the image's first.
#if H * W * C < 0x80000000 && OH * OW * C < 0x80000000
typedef int Offset;
#else
typedef int64_t Offset;
#endif
__device__ __forceinline__ Offset in_large(Offset row, Offset column) { return (row * W + column) * C; }
__device__ __forceinline__ Offset in_small(Offset row, Offset column) { return (row * OW + column) * C; }

// Whether what is read is read before it is known to be needed, so that no load waits for another.
#define EAGER (KH * KW <= 25)

// Whether a window, or a pixel, is there; if not, the nearest is taken.
__device__ __forceinline__ bool inside(int& h, int& w, int height, int width) {
    bool found = (unsigned)h < height && (unsigned)w < width;
    h = min(max(h, 0), height - 1);
    w = min(max(w, 0), width - 1);
    return found;
}

#if MAXIMUM && !BACKWARD
// The greatest of some vectors, element by element, and the number of the first that has it: NaN if there
// is one, with the number of another.
template <typename E, int N> struct Greatest {
    float best[N];
    int number[N];

    // The product with `sign`, which is -1, 0, or 1.
    __device__ __forceinline__ static Vector<E, N> turned(const Vector<E, N>& v, const float (&sign)[N]) {
        float values[N];
        unpack(v, values);
#pragma unroll
        for (int i = 0; i < N; ++i) values[i] *= sign[i];
        return pack<E>(values);
    }
    Greatest() = default;
    __device__ __forceinline__ Greatest(const Vector<E, N>& v, int numbered) {
        unpack(v, best);
#pragma unroll
        for (int i = 0; i < N; ++i) number[i] = numbered;
    }
    __device__ __forceinline__ void take(const Greatest& next) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (next.best[i] > best[i]) number[i] = next.number[i];
            best[i] = max_or_nan(best[i], next.best[i]);
        }
    }
    __device__ __forceinline__ void take_apart(float (&values)[N], int (&numbers)[N]) const {
#pragma unroll
        for (int i = 0; i < N; ++i) values[i] = best[i], numbers[i] = number[i];
    }
    // Numbers are noted less `first`. POSITIVE: 255 is the number of what is not.
    __device__ __forceinline__ void store_to(E* y, NOTE* note, int first, bool positive) const {
        store<E, N>(y, best);
        Vector<NOTE, N> noted;
#pragma unroll
        for (int i = 0; i < N; ++i)
            noted.element[i] = positive && !(best[i] > 0) ? 255 : number[i] - first;
        if (note) store(note, noted);
    }
};

#if __CUDA_ARCH__ >= 900 && VEC % 2 == 0
// Two elements of 16 bits at a time.
#define PAIRS(type, suffix) \
    __device__ __forceinline__ uint32_t greater(uint32_t x, uint32_t y, type) { \
        uint32_t mask; \
        asm("set.gt.u32." suffix " %0, %1, %2;" : "=r"(mask) : "r"(x), "r"(y)); \
        return mask; \
    } \
    __device__ __forceinline__ uint32_t maximum(uint32_t x, uint32_t y, type) { \
        uint32_t pair; \
        asm("max.NaN." suffix " %0, %1, %2;" : "=r"(pair) : "r"(x), "r"(y)); \
        return pair; \
    } \
    __device__ __forceinline__ uint32_t product(uint32_t x, uint32_t y, type) { \
        uint32_t pair; \
        asm("mul." suffix " %0, %1, %2;" : "=r"(pair) : "r"(x), "r"(y)); \
        return pair; \
    }
PAIRS(bfloat16, "bf16x2")
PAIRS(float16, "f16x2")

template <typename E, int N> struct GreatestPairs {
    uint32_t best[N / 2], number[N / 2];

    __device__ __forceinline__ static Vector<E, N> turned(Vector<E, N> v, const float (&sign)[N]) {
        Vector<E, N> signs = pack<E>(sign);
        auto& pairs = reinterpret_cast<Vector<uint32_t, N / 2>&>(v);
        const auto& others = reinterpret_cast<const Vector<uint32_t, N / 2>&>(signs);
#pragma unroll
        for (int i = 0; i < N / 2; ++i)
            pairs.element[i] = product(pairs.element[i], others.element[i], E());
        return v;
    }
    GreatestPairs() = default;
    __device__ __forceinline__ GreatestPairs(const Vector<E, N>& v, int numbered) {
        const auto& pairs = reinterpret_cast<const Vector<uint32_t, N / 2>&>(v);
#pragma unroll
        for (int i = 0; i < N / 2; ++i)
            best[i] = pairs.element[i], number[i] = numbered * 0x10001u;
    }
    __device__ __forceinline__ void take(const GreatestPairs& next) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            uint32_t mask = greater(next.best[i], best[i], E());
            best[i] = maximum(best[i], next.best[i], E());
            number[i] = (next.number[i] & mask) | (number[i] & ~mask);
        }
    }
    __device__ __forceinline__ void take_apart(float (&values)[N], int (&numbers)[N]) const {
        unpack(reinterpret_cast<const Vector<E, N>&>(best), values);
#pragma unroll
        for (int i = 0; i < N; ++i) numbers[i] = number[i / 2] >> i % 2 * 16 & 0xffff;
    }
    __device__ __forceinline__ void store_to(E* y, NOTE* note, int first, bool positive) const {
        Vector<E, N> values;
        auto& pairs = reinterpret_cast<Vector<uint32_t, N / 2>&>(values);
        Vector<NOTE, N> noted;
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            uint32_t kept = number[i] - first * 0x10001u;
            if (positive) kept |= ~greater(best[i], 0, E());
            pairs.element[i] = best[i];
            noted.element[2 * i] = kept & 0xff;
            noted.element[2 * i + 1] = kept >> 16 & 0xff;
        }
        store(y, values);
        if (note) store(note, noted);
    }
};
template <int N> struct Greatest<bfloat16, N> : GreatestPairs<bfloat16, N> {
    using GreatestPairs<bfloat16, N>::GreatestPairs;
};
template <int N> struct Greatest<float16, N> : GreatestPairs<float16, N> {
    using GreatestPairs<float16, N>::GreatestPairs;
};
#endif

// The number of the first tap of a window among those of a tile.
#define FIRST(i, j) ((i) * SH * KW + (j) * SW)

// For a tap outside the image, the nearest pixel inside is taken again: it is in the window, too, and
// comes before others as that tap would. note: the position of the maximum inside its window; 255 where
// RELU says that its gradient stops (the maximum is not positive: x came out of a ReLU, fused away).
//
// NORMALIZED: of y = (x - mean) * inv_std * scale + bias, and its ReLU if RELU. The order of y's values is
// that of x's, or, where the scale is negative, the other way round: so the maximum is sought in x.
// Where the scale is 0, all are equal, and the first is taken, unless there is a NaN. max_input: x at the maximum.
extern "C" __global__ void max_pooling(const T* x, T* y, NOTE* note, T* max_input,
                                       const float* mean, const float* inv_std, const float* scale,
                                       const float* bias, int64_t count) {
    PDL_BEGIN;
    FOR_EACH(count) {
        PLACE
        float sign[VEC];
        channels(NORMALIZED ? scale : nullptr, g * VEC, 1, sign);
#pragma unroll
        for (int i = 0; i < VEC; ++i) sign[i] = sign[i] > 0 ? 1 : sign[i] < 0 ? -1 : 0;
        int oh = h * TILE_H, ow = w * TILE_W, h0 = oh * SH - PH, w0 = ow * SW - PW;
        Greatest<T, VEC> found[TILE_H][TILE_W];
        UNROLL
        for (int r = 0; r < (TILE_H - 1) * SH + KH; ++r) {
            int row = min(max(h0 + r, 0), H - 1);
            Greatest<T, VEC> across[TILE_W];
            UNROLL
            for (int c = 0; c < (TILE_W - 1) * SW + KW; ++c) {
                int column = min(max(w0 + c, 0), W - 1), number = (row - h0) * KW + column - w0;
                const T* from = x + large + in_large(row, column);
                Vector<T, VEC> v = *reinterpret_cast<const Vector<T, VEC>*>(from);
                if (NORMALIZED) v = Greatest<T, VEC>::turned(v, sign);
                Greatest<T, VEC> next(v, number);
#pragma unroll
                for (int j = 0; j < TILE_W; ++j) {
                    int kw = c - j * SW;
                    if (kw == 0) across[j] = next;
                    else if (0 < kw && kw < KW) across[j].take(next);
                }
            }
#pragma unroll
            for (int i = 0; i < TILE_H; ++i)
#pragma unroll
                for (int j = 0; j < TILE_W; ++j) {
                    int kh = r - i * SH;
                    if (kh == 0) found[i][j] = across[j];
                    else if (0 < kh && kh < KH) found[i][j].take(across[j]);
                }
        }
        float centre[VEC], factor[VEC], scales[VEC], shift[VEC];
        if (NORMALIZED) {
            channels(mean, g * VEC, 0, centre);
            channels(inv_std, g * VEC, 1, factor);
            channels(scale, g * VEC, 1, scales);
            channels(bias, g * VEC, 0, shift);
        }
#pragma unroll
        for (int i = 0; i < TILE_H; ++i)
#pragma unroll
            for (int j = 0; j < TILE_W; ++j) {
                if (oh + i >= OH || ow + j >= OW) continue;
                int64_t to = small + in_small(oh + i, ow + j);
                if (!NORMALIZED) {
                    found[i][j].store_to(y + to, note ? note + to : nullptr, FIRST(i, j), RELU);
                    continue;
                }
                float values[VEC];
                int numbers[VEC];
                Vector<NOTE, VEC> noted;
                found[i][j].take_apart(values, numbers);
#pragma unroll
                for (int k = 0; k < VEC; ++k) {
                    values[k] *= sign[k], numbers[k] -= FIRST(i, j);
                    if (sign[k] == 0 && values[k] == 0) {
                        int row = h0 + i * SH + numbers[k] / KW, column = w0 + j * SW + numbers[k] % KW;
                        values[k] = to_float(x[large + in_large(row, column) + k]);
                    }
                }
                store<T, VEC>(max_input + to, values);
#pragma unroll
                for (int k = 0; k < VEC; ++k) {
                    float value = fmaf(values[k] - centre[k], factor[k] * scales[k], shift[k]);
                    values[k] = RELU && value < 0 ? 0.0f : value;
                    noted.element[k] = RELU && !(value > 0) ? 255 : numbers[k];
                }
                store<T, VEC>(y + to, values);
                store(note + to, noted);
            }
    }
}
#endif

// 1 / the area of a window inside the padded image, as Caffe counts it.
__device__ __forceinline__ float share(int oh, int ow) {
    int h0 = oh * SH - PH, w0 = ow * SW - PW;
    return 1.0f / ((min(h0 + KH, H + PH) - h0) * (min(w0 + KW, W + PW) - w0));
}

#if !MAXIMUM && !BACKWARD
extern "C" __global__ void average_pooling(const T* x, T* y, int64_t count) {
    PDL_BEGIN;
    FOR_EACH(count) {
        PLACE
        int h0 = h * SH - PH, w0 = w * SW - PW;
        float sum[VEC] = {};
        UNROLL
        for (int kh = 0; kh < KH; ++kh) {
            UNROLL
            for (int kw = 0; kw < KW; ++kw) {
                int row = h0 + kh, column = w0 + kw;
                bool there = inside(row, column, H, W);
                if (!EAGER && !there) continue;
                float v[VEC];
                load<T, VEC>(x + large + in_large(row, column), v);
#pragma unroll
                for (int i = 0; i < VEC; ++i) sum[i] += there ? v[i] : 0;
            }
        }
        float scale = share(h, w);
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum[i] *= scale;
        store<T, VEC>(y + id * VEC, sum);
    }
}
#endif

#if BACKWARD
// The notes of a window, 255 if it is not there: of words, as the compiler takes bytes apart in more
// instructions.
__device__ __forceinline__ void load_notes(const NOTE* from, bool there, int (&to)[VEC]) {
    if constexpr (sizeof(NOTE) == 1 && VEC % 4 == 0) {
        constexpr int WORDS = (VEC + 3) / 4;
        auto words = *reinterpret_cast<const Vector<uint32_t, WORDS>*>(from);
#pragma unroll
        for (int i = 0; i < WORDS; ++i) words.element[i] |= there ? 0 : 0xffffffff;
#pragma unroll
        for (int i = 0; i < VEC; ++i) to[i] = words.element[i / 4] >> i % 4 * 8 & 0xff;
    } else {
        auto notes = *reinterpret_cast<const Vector<NOTE, VEC>*>(from);
#pragma unroll
        for (int i = 0; i < VEC; ++i) to[i] = there ? notes.element[i] : 255;
    }
}

// Gradients, plus `addend` if that is given; zero where `relu_output`, if given, is not positive: x
// was the output of a ReLU whose backward is fused. NORMALIZED: of those, the gradient after batch
// normalization, as `gradients` of batch_norm.cu makes it.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    pooling_backward(T* dx, const T* dy, const NOTE* note, const T* addend, const T* relu_output,
                     const T* x, const float* mean, const float* inv_std, const float* scale,
                     const float* averages, int64_t count) {
    PDL_BEGIN;
    FOR_EACH(count) {
        PLACE
        h = h * TILE_H - BEFORE_H, w = w * TILE_W - BEFORE_W;
        float sum[TILE_H][TILE_W][VEC] = {};
        Vector<T, VEC> outputs[TILE_H][TILE_W], xs[TILE_H][TILE_W];
#pragma unroll
        for (int i = 0; i < TILE_H; ++i)
#pragma unroll
            for (int j = 0; j < TILE_W; ++j) {
                if ((unsigned)(h + i) >= H || (unsigned)(w + j) >= W) continue;
                int64_t at = large + in_large(h + i, w + j);
                if (addend) load<T, VEC>(addend + at, sum[i][j]);
                if (relu_output)
                    outputs[i][j] = *reinterpret_cast<const Vector<T, VEC>*>(relu_output + at);
                if (NORMALIZED) xs[i][j] = *reinterpret_cast<const Vector<T, VEC>*>(x + at);
            }
        // The last window that has the first pixel, and the tap that this is at.
        int last_h = (h + PH) / SH, last_w = (w + PW) / SW;
        int tap_h = TILE_H % SH ? (h + PH) % SH : 0, tap_w = TILE_W % SW ? (w + PW) % SW : 0;
        UNROLL
        for (int a = -((KH - 1) / SH); a <= (TILE_H - 1) / SH; ++a) {
            UNROLL
            for (int b = -((KW - 1) / SW); b <= (TILE_W - 1) / SW; ++b) {
                int oh = last_h + a, ow = last_w + b;
                bool there = inside(oh, ow, OH, OW);
                if (!EAGER && !there) continue;
                int64_t from = small + in_small(oh, ow);
                int noted[VEC];
                float v[VEC];
                load<T, VEC>(dy + from, v);
                if (MAXIMUM) {
                    load_notes(note + from, there, noted);
                } else {
                    float scale = share(oh, ow);
#pragma unroll
                    for (int k = 0; k < VEC; ++k) v[k] = there ? v[k] * scale : 0;
                }
#pragma unroll
                for (int i = 0; i < TILE_H; ++i)
#pragma unroll
                    for (int j = 0; j < TILE_W; ++j) {
                        int kh = tap_h + i - a * SH, kw = tap_w + j - b * SW;
                        if ((unsigned)kh >= KH || (unsigned)kw >= KW) continue;
#pragma unroll
                        for (int k = 0; k < VEC; ++k)
                            if (!MAXIMUM || noted[k] == kh * KW + kw) sum[i][j][k] += v[k];
                    }
            }
        }
        // factor * (gradient - less - (x - mean) * slope)
        float factor[VEC], less[VEC], slope[VEC];
        if (NORMALIZED) {
            float centre[VEC], scales[VEC];
            channels(mean, g * VEC, 0, centre);
            channels(inv_std, g * VEC, 1, factor);
            channels(scale, g * VEC, 1, scales);
            channels(averages, g * VEC, 0, less);
            channels(averages ? averages + C : nullptr, g * VEC, 0, slope);
#pragma unroll
            for (int k = 0; k < VEC; ++k) factor[k] *= scales[k], less[k] -= centre[k] * slope[k];
        }
#pragma unroll
        for (int i = 0; i < TILE_H; ++i)
#pragma unroll
            for (int j = 0; j < TILE_W; ++j) {
                if ((unsigned)(h + i) >= H || (unsigned)(w + j) >= W) continue;
                if (NORMALIZED) {
                    float v[VEC];
                    unpack(xs[i][j], v);
#pragma unroll
                    for (int k = 0; k < VEC; ++k)
                        sum[i][j][k] = factor[k] * (fmaf(v[k], -slope[k], sum[i][j][k]) - less[k]);
                }
                if (relu_output) {
                    float v[VEC];
                    unpack(outputs[i][j], v);
#pragma unroll
                    for (int k = 0; k < VEC; ++k) sum[i][j][k] = relu_backward(sum[i][j][k], v[k]);
                }
                store<T, VEC>(dx + large + in_large(h + i, w + j), sum[i][j]);
            }
    }
}
#endif
