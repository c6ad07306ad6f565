// Owns pooling over two spatial axes of NHWC tensors, VEC channels a thread.
//
// T: element type; VEC: channels a thread (a divisor of C); KH KW SH SW: window and stride.
// The backward kernels gather: each input element adds what the windows over it send, in a fixed
// order, so that results do not depend on how threads are scheduled.

struct Shape { int n, c, h, w, oh, ow, ph, pw; };

#define SHAPE int n_, int c_, int h_, int w_, int oh_, int ow_, int ph_, int pw_
#define READ_SHAPE const Shape s = {n_, c_, h_, w_, oh_, ow_, ph_, pw_};

// note: the position of the maximum inside its window; 255 where RELU says that its gradient
// stops (the maximum is not positive: x came out of a ReLU, fused away).
extern "C" __global__ void max_pooling(const T* x, T* y, uint8_t* note, SHAPE) {
    READ_SHAPE
    int groups = s.c / VEC;
    FOR_EACH((int64_t)s.n * s.oh * s.ow * groups) {
        int g = id % groups;
        int64_t pixel = id / groups;
        int ow = pixel % s.ow, oh = pixel / s.ow % s.oh;
        int64_t n = pixel / ((int64_t)s.ow * s.oh);
        int h0 = oh * SH - s.ph, w0 = ow * SW - s.pw;
        float best[VEC];
        uint8_t where[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) best[i] = -INFINITY, where[i] = 0;
#pragma unroll
        for (int kh = 0; kh < KH; ++kh) {
            int h = h0 + kh;
            if (h < 0 || h >= s.h) continue;
#pragma unroll
            for (int kw = 0; kw < KW; ++kw) {
                int w = w0 + kw;
                if (w < 0 || w >= s.w) continue;
                float v[VEC];
                load<T, VEC>(x + ((n * s.h + h) * s.w + w) * s.c + g * VEC, v);
#pragma unroll
                for (int i = 0; i < VEC; ++i)
                    if (v[i] > best[i]) best[i] = v[i], where[i] = kh * KW + kw;
            }
        }
        int64_t out = pixel * s.c + g * VEC;
        store<T, VEC>(y + out, best);
        if (note) {
            Vector<uint8_t, VEC> noted;
#pragma unroll
            for (int i = 0; i < VEC; ++i)
                noted.element[i] = RELU && !(best[i] > 0) ? 255 : where[i];
            *reinterpret_cast<Vector<uint8_t, VEC>*>(note + out) = noted;
        }
    }
}

extern "C" __global__ void max_pooling_backward(const T* dy, const uint8_t* note, T* dx, SHAPE) {
    READ_SHAPE
    int groups = s.c / VEC;
    FOR_EACH((int64_t)s.n * s.h * s.w * groups) {
        int g = id % groups;
        int64_t pixel = id / groups;
        int w = pixel % s.w, h = pixel / s.w % s.h;
        int64_t n = pixel / ((int64_t)s.w * s.h);
        float sum[VEC] = {};
        // Windows oh with oh * SH - ph <= h < oh * SH - ph + KH.
        int oh0 = max(0, (h + s.ph - KH) / SH + (h + s.ph >= KH)), oh1 = min(s.oh - 1, (h + s.ph) / SH);
        int ow0 = max(0, (w + s.pw - KW) / SW + (w + s.pw >= KW)), ow1 = min(s.ow - 1, (w + s.pw) / SW);
        for (int oh = oh0; oh <= oh1; ++oh)
            for (int ow = ow0; ow <= ow1; ++ow) {
                int64_t from = ((n * s.oh + oh) * s.ow + ow) * s.c + g * VEC;
                int here = (h - oh * SH + s.ph) * KW + (w - ow * SW + s.pw);
                float v[VEC];
                load<T, VEC>(dy + from, v);
                Vector<uint8_t, VEC> noted = *reinterpret_cast<const Vector<uint8_t, VEC>*>(note + from);
#pragma unroll
                for (int i = 0; i < VEC; ++i)
                    if (noted.element[i] == here) sum[i] += v[i];
            }
        store<T, VEC>(dx + pixel * s.c + g * VEC, sum);
    }
}

// The area of a window inside the padded image, as Caffe counts it.
__device__ __forceinline__ float area(int h0, int w0, const Shape& s) {
    return (float)((min(h0 + KH, s.h + s.ph) - h0) * (min(w0 + KW, s.w + s.pw) - w0));
}

extern "C" __global__ void average_pooling(const T* x, T* y, SHAPE) {
    READ_SHAPE
    int groups = s.c / VEC;
    FOR_EACH((int64_t)s.n * s.oh * s.ow * groups) {
        int g = id % groups;
        int64_t pixel = id / groups;
        int ow = pixel % s.ow, oh = pixel / s.ow % s.oh;
        int64_t n = pixel / ((int64_t)s.ow * s.oh);
        int h0 = oh * SH - s.ph, w0 = ow * SW - s.pw;
        float sum[VEC] = {};
        for (int h = max(h0, 0); h < min(h0 + KH, s.h); ++h)
            for (int w = max(w0, 0); w < min(w0 + KW, s.w); ++w) {
                float v[VEC];
                load<T, VEC>(x + ((n * s.h + h) * s.w + w) * s.c + g * VEC, v);
#pragma unroll
                for (int i = 0; i < VEC; ++i) sum[i] += v[i];
            }
        float scale = 1 / area(h0, w0, s);
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum[i] *= scale;
        store<T, VEC>(y + pixel * s.c + g * VEC, sum);
    }
}

// mask (may be null): x, the output of a ReLU whose backward is fused: no gradient where x <= 0.
extern "C" __global__ void average_pooling_backward(const T* dy, const T* mask, T* dx, SHAPE) {
    READ_SHAPE
    int groups = s.c / VEC;
    FOR_EACH((int64_t)s.n * s.h * s.w * groups) {
        int g = id % groups;
        int64_t pixel = id / groups;
        int w = pixel % s.w, h = pixel / s.w % s.h;
        int64_t n = pixel / ((int64_t)s.w * s.h);
        float sum[VEC] = {};
        int oh0 = max(0, (h + s.ph - KH) / SH + (h + s.ph >= KH)), oh1 = min(s.oh - 1, (h + s.ph) / SH);
        int ow0 = max(0, (w + s.pw - KW) / SW + (w + s.pw >= KW)), ow1 = min(s.ow - 1, (w + s.pw) / SW);
        for (int oh = oh0; oh <= oh1; ++oh)
            for (int ow = ow0; ow <= ow1; ++ow) {
                float v[VEC];
                load<T, VEC>(dy + ((n * s.oh + oh) * s.ow + ow) * s.c + g * VEC, v);
                float scale = 1 / area(oh * SH - s.ph, ow * SW - s.pw, s);
#pragma unroll
                for (int i = 0; i < VEC; ++i) sum[i] += v[i] * scale;
            }
        int64_t out = pixel * s.c + g * VEC;
        if (mask) {
            float v[VEC];
            load<T, VEC>(mask + out, v);
#pragma unroll
            for (int i = 0; i < VEC; ++i)
                if (!(v[i] > 0)) sum[i] = 0;
        }
        store<T, VEC>(dx + out, sum);
    }
}
