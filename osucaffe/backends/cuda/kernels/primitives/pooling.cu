// Owns pooling over two spatial axes of NHWC tensors, VEC channels a thread.
//
// T: element type; VEC: channels a thread (a divisor of C); C H W OH OW: extents of the large image
// and the small; KH KW SH SW PH PW: window, stride, padding; TILE_H TILE_W: pixels that a thread
// writes, TILES_H TILES_W: how many such tiles an image has, and BEFORE_H BEFORE_W: by how much the
// first begins before it; MAXIMUM: whether the maximum is taken, or the mean. All are constants, so that
// no division is left to the run. The backward kernel gathers: each input element adds what the windows
// over it send, in a fixed order, so that results do not depend on how threads are scheduled.
//
// Maximum pooling is bound by integer instructions, not by memory, where each pixel has a thread of its
// own: in a tile, what was read serves several pixels, and as backward it begins where a window does,
// the compiler knows at which tap each pixel is. On an H200, 3 x 3 windows two apart over 64 channels in
// bf16 take 86 us backward, 149 without tiles; one apart over 256 forward 42, and 51.

#define GROUPS (C / VEC)

#if KH * KW <= 64
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("unroll 1")
#endif

// The place of a thread: its vector of channels, and its tile of an image.
#define PLACE \
    uint32_t number = (uint32_t)id; \
    int g = number % GROUPS; \
    uint32_t tile = number / GROUPS; \
    int w = tile % TILES_W, h = tile / TILES_W % TILES_H; \
    int64_t n = tile / (TILES_W * TILES_H);

// Whether what is read is read before it is known to be needed, so that no load waits for another.
#define EAGER (MAXIMUM && KH * KW <= 25)

// Whether a pixel is inside an image; if not, the nearest is taken.
__device__ __forceinline__ bool inside(int& h, int& w, int height, int width) {
    bool found = (unsigned)h < height && (unsigned)w < width;
    h = min(max(h, 0), height - 1);
    w = min(max(w, 0), width - 1);
    return found;
}

// The greatest of some vectors, element by element, and the number of the first that has it.
template <typename E, int N> struct Greatest {
    float best[N];
    int number[N];

    __device__ __forceinline__ Greatest() {
#pragma unroll
        for (int i = 0; i < N; ++i) best[i] = -INFINITY, number[i] = 0;
    }
    __device__ __forceinline__ void take(const Vector<E, N>& v, bool there, int numbered) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            float value = there ? to_float(v.element[i]) : -INFINITY;
            if (value > best[i]) best[i] = value, number[i] = numbered;
        }
    }
    // POSITIVE: 255 is the number of what is not.
    __device__ __forceinline__ void store_to(E* y, uint8_t* note, bool positive) const {
        store<E, N>(y, best);
        Vector<uint8_t, N> noted;
#pragma unroll
        for (int i = 0; i < N; ++i) noted.element[i] = positive && !(best[i] > 0) ? 255 : number[i];
        if (note) store(note, noted);
    }
};

#if __CUDA_ARCH__ >= 900 && VEC % 2 == 0
// Two elements of 16 bits at a time.
__device__ __forceinline__ uint32_t greater(uint32_t x, uint32_t y, bfloat16) {
    uint32_t mask;
    asm("set.gt.u32.bf16x2 %0, %1, %2;" : "=r"(mask) : "r"(x), "r"(y));
    return mask;
}
__device__ __forceinline__ uint32_t greater(uint32_t x, uint32_t y, float16) {
    uint32_t mask;
    asm("set.gt.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(x), "r"(y));
    return mask;
}

template <typename E, int N> struct GreatestPairs {
    uint32_t best[N / 2], number[N / 2];

    __device__ __forceinline__ static uint32_t least() {
        return from_float<E>(-INFINITY).bits * 0x10001u;
    }
    __device__ __forceinline__ GreatestPairs() {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) best[i] = least(), number[i] = 0;
    }
    __device__ __forceinline__ void take(const Vector<E, N>& v, bool there, int numbered) {
        const auto& pairs = reinterpret_cast<const Vector<uint32_t, N / 2>&>(v);
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            uint32_t pair = there ? pairs.element[i] : least();
            uint32_t mask = greater(pair, best[i], E());
            best[i] = (pair & mask) | (best[i] & ~mask);
            number[i] = ((numbered * 0x10001u) & mask) | (number[i] & ~mask);
        }
    }
    __device__ __forceinline__ void store_to(E* y, uint8_t* note, bool positive) const {
        Vector<E, N> values;
        auto& pairs = reinterpret_cast<Vector<uint32_t, N / 2>&>(values);
        Vector<uint8_t, N> noted;
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            uint32_t kept = positive ? number[i] | ~greater(best[i], 0, E()) : number[i];
            pairs.element[i] = best[i];
            noted.element[2 * i] = kept;
            noted.element[2 * i + 1] = kept >> 16;
        }
        store(y, values);
        if (note) store(note, noted);
    }
};
template <int N> struct Greatest<bfloat16, N> : GreatestPairs<bfloat16, N> {};
template <int N> struct Greatest<float16, N> : GreatestPairs<float16, N> {};
#endif

// note: the position of the maximum inside its window; 255 where RELU says that its gradient
// stops (the maximum is not positive: x came out of a ReLU, fused away).
extern "C" __global__ void max_pooling(const T* x, T* y, uint8_t* note, int64_t count) {
    PDL_BEGIN;
    FOR_EACH(count) {
        PLACE
        int oh = h * TILE_H, ow = w * TILE_W, h0 = oh * SH - PH, w0 = ow * SW - PW;
        Greatest<T, VEC> found[TILE_H][TILE_W];
        UNROLL
        for (int r = 0; r < (TILE_H - 1) * SH + KH; ++r) {
            UNROLL
            for (int c = 0; c < (TILE_W - 1) * SW + KW; ++c) {
                int row = h0 + r, column = w0 + c;
                bool there = inside(row, column, H, W);
                if (!EAGER && !there) continue;
                int64_t from = ((n * H + row) * W + column) * C + g * VEC;
                Vector<T, VEC> v = *reinterpret_cast<const Vector<T, VEC>*>(x + from);
#pragma unroll
                for (int i = 0; i < TILE_H; ++i)
#pragma unroll
                    for (int j = 0; j < TILE_W; ++j) {
                        int kh = r - i * SH, kw = c - j * SW;
                        if ((unsigned)kh < KH && (unsigned)kw < KW)
                            found[i][j].take(v, there, kh * KW + kw);
                    }
            }
        }
#pragma unroll
        for (int i = 0; i < TILE_H; ++i)
#pragma unroll
            for (int j = 0; j < TILE_W; ++j) {
                if (oh + i >= OH || ow + j >= OW) continue;
                int64_t to = ((n * OH + oh + i) * OW + ow + j) * C + g * VEC;
                found[i][j].store_to(y + to, note ? note + to : nullptr, RELU);
            }
    }
}

// 1 / the area of a window inside the padded image, as Caffe counts it.
__device__ __forceinline__ float share(int oh, int ow) {
    int h0 = oh * SH - PH, w0 = ow * SW - PW;
    return 1.0f / ((min(h0 + KH, H + PH) - h0) * (min(w0 + KW, W + PW) - w0));
}

extern "C" __global__ void average_pooling(const T* x, T* y, int64_t count) {
    PDL_BEGIN;
    FOR_EACH(count) {
        PLACE
        int h0 = h * SH - PH, w0 = w * SW - PW;
        float sum[VEC] = {};
        UNROLL
        for (int kh = 0; kh < KH; ++kh) {
            if ((unsigned)(h0 + kh) >= H) continue;
            UNROLL
            for (int kw = 0; kw < KW; ++kw) {
                if ((unsigned)(w0 + kw) >= W) continue;
                float v[VEC];
                load<T, VEC>(x + ((n * H + h0 + kh) * W + w0 + kw) * C + g * VEC, v);
#pragma unroll
                for (int i = 0; i < VEC; ++i) sum[i] += v[i];
            }
        }
        float scale = share(h, w);
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum[i] *= scale;
        store<T, VEC>(y + id * VEC, sum);
    }
}

// The notes of a window, 255 if it is not there: of words, as the compiler takes bytes apart in more
// instructions.
__device__ __forceinline__ void load_notes(const uint8_t* from, bool there, int (&to)[VEC]) {
#if VEC % 4 == 0
    auto words = *reinterpret_cast<const Vector<uint32_t, VEC / 4>*>(from);
#pragma unroll
    for (int i = 0; i < VEC / 4; ++i) words.element[i] |= there ? 0 : 0xffffffff;
#pragma unroll
    for (int i = 0; i < VEC; ++i) to[i] = words.element[i / 4] >> i % 4 * 8 & 0xff;
#else
    auto bytes = *reinterpret_cast<const Vector<uint8_t, VEC>*>(from);
#pragma unroll
    for (int i = 0; i < VEC; ++i) to[i] = there ? bytes.element[i] : 255;
#endif
}

// Gradients, plus `addend` if that is given; zero where `relu_output`, if given, is not positive: x
// was the output of a ReLU whose backward is fused.
extern "C" __global__ void pooling_backward(T* dx, const T* dy, const uint8_t* note,
                                            const T* addend, const T* relu_output, int64_t count) {
    PDL_BEGIN;
    FOR_EACH(count) {
        PLACE
        h = h * TILE_H - BEFORE_H, w = w * TILE_W - BEFORE_W;
        float sum[TILE_H][TILE_W][VEC] = {};
        Vector<T, VEC> outputs[TILE_H][TILE_W];
#pragma unroll
        for (int i = 0; i < TILE_H; ++i)
#pragma unroll
            for (int j = 0; j < TILE_W; ++j) {
                if ((unsigned)(h + i) >= H || (unsigned)(w + j) >= W) continue;
                int64_t at = ((n * H + h + i) * W + w + j) * C + g * VEC;
                if (addend) load<T, VEC>(addend + at, sum[i][j]);
                if (relu_output)
                    outputs[i][j] = *reinterpret_cast<const Vector<T, VEC>*>(relu_output + at);
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
                int64_t from = ((n * OH + oh) * OW + ow) * C + g * VEC;
                int noted[VEC];
                float v[VEC];
                load<T, VEC>(dy + from, v);
                if (MAXIMUM) {
                    load_notes(note + from, there, noted);
                } else {
                    float scale = share(oh, ow);
#pragma unroll
                    for (int k = 0; k < VEC; ++k) v[k] *= scale;
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
#pragma unroll
        for (int i = 0; i < TILE_H; ++i)
#pragma unroll
            for (int j = 0; j < TILE_W; ++j) {
                if ((unsigned)(h + i) >= H || (unsigned)(w + j) >= W) continue;
                if (relu_output) {
                    float v[VEC];
                    unpack(outputs[i][j], v);
#pragma unroll
                    for (int k = 0; k < VEC; ++k) sum[i][j][k] = behind_relu(sum[i][j][k], v[k]);
                }
                store<T, VEC>(dx + ((n * H + h + i) * W + w + j) * C + g * VEC, sum[i][j]);
            }
    }
}
