// The transformation of raw records, as `transform_record` of records.py defines it.
//
// T: element type of y. FROM_LAST, LAST: x, y have the channels last. MEAN_IMAGE: the mean is an image.
// CACHED: x has more records than the batch; a row of the table begins with the number of one, and
// ends with its label. PARTS: above 1, x is the addresses of that many parts of the records: the one of
// number n is the (n / PARTS)-th of part n % PARTS.

// A thread makes all channels of a pixel. count: pixels of all crops; height, width: of a crop;
// rows, columns: of a record; table: first row, first column and mirror of each record's crop.
extern "C" __global__ void transform(const void* x, const int* table, const float* mean, T* y,
                                     float* labels, int64_t count, int height, int width,
                                     int rows, int columns, float scale) {
    PDL_BEGIN;
    int area = height * width, plane = rows * columns;
    FOR_EACH(count) {
        int64_t n = id / area;
        int pixel = id % area, row = pixel / width, column = pixel % width;
        const int* entry = table + n * (CACHED ? 5 : 3);
        const int* choice = entry + CACHED;
        int64_t record = CACHED ? entry[0] : n;
        if (CACHED && labels && pixel == 0) labels[n] = (float)entry[4];
        int from = (choice[0] + row) * columns + choice[1]
                 + (choice[2] ? width - 1 - column : column);
        const uint8_t* records = PARTS > 1 ? ((const uint8_t* const*)x)[record % PARTS]
                                           : (const uint8_t*)x;
        const uint8_t* source = records + record / PARTS * CHANNELS * plane
                              + (FROM_LAST ? from * CHANNELS : from);
        T* target = y + n * CHANNELS * area + (LAST ? pixel * CHANNELS : pixel);
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
            float value = to_float(source[FROM_LAST ? c : (int64_t)c * plane]);
            if (mean) value -= mean[MEAN_IMAGE ? (int64_t)c * plane + from : c];
            target[LAST ? c : (int64_t)c * area] = from_float<T>(value * scale);
        }
    }
}
