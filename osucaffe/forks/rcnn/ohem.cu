// Online hard example mining (OHEM): the regions of greatest loss, in row-major float32 tensors.

// Region number `id` is of the ohem_select where fewer than `most` of its image come before it. inner:
// places after the axis of the five numbers.
extern "C" __global__ void ohem_select(const float* rois, const float* loss, float* y, int most,
                                   int inner, int64_t count) {
    PDL_BEGIN;
    FOR_EACH(count) {
        float image = rois[id / inner * 5 * inner + id % inner], own = loss[id];
        int before = 0;
        for (int64_t i = 0; i < count; ++i)
            before += rois[i / inner * 5 * inner + i % inner] == image &&
                      (loss[i] > own || (loss[i] == own && i < id));
        y[id] = before < most;
    }
}
