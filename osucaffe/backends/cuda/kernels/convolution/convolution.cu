// Owns what goes around a convolution, on images with the channels last.
//
// T: element type; VEC: elements that a thread treats at once, a divisor of the channels.

// y = x + b, then y or slope * y where it is not positive. x has `width` vectors a pixel: the channels
// of y, which has `pitch`, from its vector `first` on (all of them in place: x is y).
extern "C" __global__ void add_bias(const T* x, T* y, const float* b, int64_t count, int width,
                                    int pitch, int first, float slope) {
    PDL_BEGIN;
    FOR_EACH(count) {
        float v[VEC];
        load<T, VEC>(x + id * VEC, v);
        int64_t pixel = id / width;
        int channel = (first + (int)(id - pixel * width)) * VEC;
#pragma unroll
        for (int i = 0; i < VEC; ++i)
            v[i] = relu(v[i] + (b ? b[channel + i] : 0.0f), slope);
        store<T, VEC>(y + pixel * pitch * VEC + channel, v);
    }
}
