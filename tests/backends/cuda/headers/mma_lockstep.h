// A stand-in for mma.cuh, for kernels as plain C++ (lockstep.h): words are floats, or pairs of bfloat16.
struct float2 { float x, y; };
struct uint2 { uint32_t x, y; };
struct int2 { int x, y; };
static int2 make_int2(int x, int y) { return {x, y}; }
static float2 make_float2(float x, float y) { return {x, y}; }
static uint32_t posted[1024][6];

static float value(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
#ifdef BFLOAT16  // words are pairs of these
static float product(uint32_t a, uint32_t b) {
    return value(a << 16) * value(b << 16) + value(a & 0xffff0000) * value(b & 0xffff0000);
}
#else
static uint32_t word(float low, float) { uint32_t bits; memcpy(&bits, &low, 4); return bits; }
static float product(uint32_t a, uint32_t b) { return value(a) * value(b); }
#endif

// d (16 x 8) += a (16 x 8 words) b (8 words x 8) of a warp, as mma.cuh says which lane has what.
static void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    uint32_t* own = posted[running];
    memcpy(own, a, sizeof a);
    own[4] = b0, own[5] = b1;
    meet_warp();
    int warp = running & ~31, g = running % 32 / 4, t = running % 4;
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 8; ++k)
            d[i] += product(posted[warp + g * 4 + k % 4][i / 2 + k / 4 * 2],
                            posted[warp + (2 * t + i % 2) * 4 + k % 4][4 + k / 4]);
    meet_warp();
}
