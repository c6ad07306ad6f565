// The numbers that the host gives between iterations: they travel as arguments of a launch, so
// that the host never waits for the device and no memory can change under it; or they lie in tables
// of what is for many iterations.

extern "C" __global__ void set_floats(float* to, int count, float a, float b, float c, float d) {
    PDL_BEGIN;
    float values[] = {a, b, c, d};
    for (int i = 0; i < count; ++i) to[i] = values[i];
}

extern "C" __global__ void set_step(uint64_t* to, uint64_t step, uint64_t rank) {
    PDL_BEGIN;
    to[0] = step, to[1] = rank;
}

// One block: row = the table's row at which the cursor stands, and the cursor moves on. Elements are
// of four bytes.
extern "C" __global__ void next_row(const uint32_t* table, int* cursor, uint32_t* row, int rows,
                                    int64_t size) {
    PDL_BEGIN;
    __shared__ int at;
    if (threadIdx.x == 0) {
        at = *cursor % rows;
        *cursor = at + 1;
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x) row[i] = table[at * size + i];
}
