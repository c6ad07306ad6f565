// The scaling of photos: each axis by a matrix of few taps a row, which the record brings along.
//
// CHANNELS: of the input. A record, after each other: int32 height, width, row taps, column taps; of
// the scaled rows int32 the first row of the photo that makes it, and float32 the weights of it and of
// the next ones, (rows, row taps); the same of the scaled columns; then the pixels, red first.

// A thread makes all channels of a pixel of a part. count: pixels of all parts; crops: first row, first
// column and mirror of each of the parts; down, across: extents of a scaled photo; height, width: of a
// part.
extern "C" __global__ void scale_photos(const uint8_t* records, const int* crops, const float* mix,
                                        const float* offset, float* y, int64_t count, int64_t bytes,
                                        int parts, int down, int across, int height, int width) {
    PDL_BEGIN;
    int area = height * width;
    FOR_EACH(count) {
        int64_t n = id / area;
        int pixel = id % area, at = pixel % width;
        const int* choice = crops + n % parts * 3;
        int row = choice[0] + pixel / width;
        int column = choice[1] + (choice[2] ? width - 1 - at : at);
        const int* head = (const int*)(records + n / parts * bytes);
        int stride = head[1] * 3, row_taps = head[2], column_taps = head[3];
        const int* rows = head + 4;
        const float* row_weights = (const float*)(rows + down) + row * row_taps;
        const int* columns = rows + down * (1 + row_taps);
        const float* column_weights = (const float*)(columns + across) + column * column_taps;
        const uint8_t* source = (const uint8_t*)(columns + across * (1 + column_taps))
                              + rows[row] * stride + columns[column] * 3;
        float red = 0, green = 0, blue = 0;
        for (int i = 0; i < row_taps; ++i) {
            const uint8_t* from = source + i * stride;
            float reds = 0, greens = 0, blues = 0;  // of a row: long sums would lose digits
            for (int j = 0; j < column_taps; ++j) {
                float weight = column_weights[j];
                reds += weight * from[3 * j];
                greens += weight * from[3 * j + 1];
                blues += weight * from[3 * j + 2];
            }
            red += row_weights[i] * reds;
            green += row_weights[i] * greens;
            blue += row_weights[i] * blues;
        }
        for (int c = 0; c < CHANNELS; ++c) {
            float value = mix[3 * c] * red + mix[3 * c + 1] * green + mix[3 * c + 2] * blue;
            y[(n * CHANNELS + c) * area + pixel] = value + offset[c * area + pixel];
        }
    }
}
