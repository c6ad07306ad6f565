// Owns pooling over two spatial axes of NHWC tensors, VEC channels a thread.
//
// T: element type; VEC: channels a thread (a divisor of C); C H W OH OW: extents of the large image
// and the small; KH KW SH SW PH PW: window, stride, padding. All are constants, so that no division
// is left to the run. The backward kernels gather: each input element adds what the windows over it
// send, in a fixed order, so that results do not depend on how threads are scheduled.

#define GROUPS (C / VEC)

#if KH * KW <= 64
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("unroll 1")
#endif

// The place of a thread: its vector of channels, and its pixel in an image of this size.
#define PLACE(height, width) \
    uint32_t number = (uint32_t)id; \
    int g = number % GROUPS; \
    uint32_t pixel = number / GROUPS; \
    int w = pixel % (width), h = pixel / (width) % (height); \
    int64_t n = pixel / ((width) * (height));

// Runs the body for each tap (kh, kw) of window (h, w) inside the large image, with its channels v.
#define TAPS(...) \
    int h0 = h * SH - PH, w0 = w * SW - PW; \
    UNROLL \
    for (int kh = 0; kh < KH; ++kh) { \
        if ((unsigned)(h0 + kh) >= H) continue; \
        UNROLL \
        for (int kw = 0; kw < KW; ++kw) { \
            if ((unsigned)(w0 + kw) >= W) continue; \
            float v[VEC]; \
            load<T, VEC>(x + ((n * H + h0 + kh) * W + w0 + kw) * C + g * VEC, v); \
            _Pragma("unroll") \
            for (int i = 0; i < VEC; ++i) __VA_ARGS__ \
        } \
    }

// note: the position of the maximum inside its window; 255 where RELU says that its gradient
// stops (the maximum is not positive: x came out of a ReLU, fused away).
extern "C" __global__ void max_pooling(const T* x, T* y, uint8_t* note, int64_t count) {
    PDL_BEGIN;
    FOR_EACH(count) {
        PLACE(OH, OW)
        float best[VEC];
        uint8_t where[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) best[i] = -INFINITY, where[i] = 0;
        TAPS(if (v[i] > best[i]) best[i] = v[i], where[i] = kh * KW + kw;)
        store<T, VEC>(y + id * VEC, best);
        if (note) {
            Vector<uint8_t, VEC> noted;
#pragma unroll
            for (int i = 0; i < VEC; ++i)
                noted.element[i] = RELU && !(best[i] > 0) ? 255 : where[i];
            *reinterpret_cast<Vector<uint8_t, VEC>*>(note + id * VEC) = noted;
        }
    }
}

// Runs the body for each window (oh, ow) over (h, w), which stands at tap (kh, kw) of it, with the
// window's channels v of dy, which begin there at `from`.
#define WINDOWS(...) \
    UNROLL \
    for (int i_ = (KH - 1) / SH; i_ >= 0; --i_) { \
        int oh = (h + PH) / SH - i_, kh = h + PH - oh * SH; \
        if ((unsigned)oh >= OH || kh >= KH) continue; \
        UNROLL \
        for (int j_ = (KW - 1) / SW; j_ >= 0; --j_) { \
            int ow = (w + PW) / SW - j_, kw = w + PW - ow * SW; \
            if ((unsigned)ow >= OW || kw >= KW) continue; \
            int64_t from = ((n * OH + oh) * OW + ow) * C + g * VEC; \
            float v[VEC]; \
            load<T, VEC>(dy + from, v); \
            __VA_ARGS__ \
        } \
    }

// Stores a gradient, plus `addend` where that is given; zero where `relu_output`, if given, is not
// positive: x was the output of a ReLU whose backward is fused.
__device__ __forceinline__ void finish(T* dx, float (&sum)[VEC], const T* addend, const T* relu_output) {
    float v[VEC];
    if (addend) {
        load<T, VEC>(addend, v);
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum[i] += v[i];
    }
    if (relu_output) {
        load<T, VEC>(relu_output, v);
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum[i] = behind_relu(sum[i], v[i]);
    }
    store<T, VEC>(dx, sum);
}

#define FINISH \
    finish(dx + id * VEC, sum, addend ? addend + id * VEC : nullptr, \
           relu_output ? relu_output + id * VEC : nullptr)

extern "C" __global__ void max_pooling_backward(T* dx, const T* dy, const uint8_t* note,
                                                const T* addend, const T* relu_output,
                                                int64_t count) {
    PDL_BEGIN;
    FOR_EACH(count) {
        PLACE(H, W)
        float sum[VEC] = {};
        WINDOWS({
            Vector<uint8_t, VEC> noted = *reinterpret_cast<const Vector<uint8_t, VEC>*>(note + from);
            _Pragma("unroll")
            for (int i = 0; i < VEC; ++i) sum[i] += noted.element[i] == kh * KW + kw ? v[i] : 0.0f;
        })
        FINISH;
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
        PLACE(OH, OW)
        float sum[VEC] = {};
        TAPS(sum[i] += v[i];)
        float scale = share(h, w);
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum[i] *= scale;
        store<T, VEC>(y + id * VEC, sum);
    }
}

extern "C" __global__ void average_pooling_backward(T* dx, const T* dy, const T* addend,
                                                    const T* relu_output, int64_t count) {
    PDL_BEGIN;
    FOR_EACH(count) {
        PLACE(H, W)
        float sum[VEC] = {};
        WINDOWS({
            float scale = share(oh, ow);
            _Pragma("unroll")
            for (int i = 0; i < VEC; ++i) sum[i] += v[i] * scale;
        })
        FINISH;
    }
}
