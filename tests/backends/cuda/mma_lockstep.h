// Owns a stand-in for mma.cuh, for kernels as plain C++ (lockstep.h): words are floats.
struct float2 { float x, y; };
struct uint2 { uint32_t x, y; };
struct int2 { int x, y; };
static int2 make_int2(int x, int y) { return {x, y}; }
static float2 make_float2(float x, float y) { return {x, y}; }
static uint32_t posted[1024][6];

static uint32_t word(float low, float) { uint32_t bits; memcpy(&bits, &low, 4); return bits; }
static float value(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }

// d (16 x 8) += a (16 x 8) b (8 x 8) of a warp, as mma.cuh says which lane has what.
static void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    uint32_t* own = posted[running];
    memcpy(own, a, sizeof a);
    own[4] = b0, own[5] = b1;
    meet();
    int warp = running & ~31, g = running % 32 / 4, t = running % 4;
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 8; ++k)
            d[i] += value(posted[warp + g * 4 + k % 4][i / 2 + k / 4 * 2]) *
                    value(posted[warp + (2 * t + i % 2) * 4 + k % 4][4 + k / 4]);
    meet();
}
