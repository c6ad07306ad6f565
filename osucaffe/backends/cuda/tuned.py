"""The numbers of one machine, an H200: which kernels are worth trying for what, and in what order.

The tuner's timing has the last word, but only of what is tried: whoever measures on another GPU
looks here (`make bench-kernels`). Above each value are its unit and what was measured. "Work" is a
number of multiplications. Cycles, and bytes a cycle, are of a multiprocessor, and only rank the
configurations of a kernel.
"""

# -- which kernels are tried -----------------------------------------------------------------------

# Work. CaffeNet on one image, whose groups are 7e7 to 2e8, takes 0.76 of the time in tf32 that it
# took where 3e8 was the least (0.152 ms, 0.202 before), and 0.92 in bf16 (0.104, 0.112).
IMPLICIT_GEMM_MIN_WORK = 1e7
# Channels that a product sums over, up to which its tiles wait for memory: there it adds another
# gradient in 0.65 to 0.7 of the time of a library and a pass (ResNet-50); with more channels in 0.9
# to 1.05, and a batch normalization after it would have added in less.
IMPLICIT_GEMM_MAX_ADDING = 128
# Work.
WGRAD_TF32_MIN_WORK, WGRAD_16BIT_MIN_WORK = 5e8, 3e8
# Work: what is smaller, small_mma keeps in shared memory as a whole.
FEW_CHANNELS_MIN_WORK = 1e8
# Work, where the window moves by one pixel. The gradient of VGG-16's first filters takes 0.32 ms in
# place of 0.44 (64 images in bf16).
SPACE_TO_DEPTH_MIN_WORK = 1e9
# Work.
SMALL_MMA_MAX_WORK = 7e8
# Rows and work of a matrix product: with less, one without tensor cores is faster, with more, a
# library.
SMALL_MMA_PRODUCT_ROWS, SMALL_MMA_MAX_PRODUCT_WORK = range(16, 1025), 5e7
# Work of a product without tensor cores: of outputs, of gradients.
INNER_PRODUCT_MAX_WORK, INNER_PRODUCT_MAX_GRADIENT_WORK = 2e7, 3e7

# -- libraries -------------------------------------------------------------------------------------

# Work of a gradient up to which a product is taken as it comes: a faster plan of cuDNN would be a
# few us faster, and takes longer to build.
CUBLASLT_ALONE_MAX_WORK = 4e9
# Multiplications a cycle by the tensor cores of a multiprocessor; the share of them that libraries
# hardly reach for groups, few channels or gradients of filters.
TF32_MULTIPLICATIONS, TF32_GOOD_SHARE = 1024, 0.225
# Proposals that are asked for; looked at, or as many as it takes to find one that can be built;
# timed: of 40 for each of CaffeNet's, GoogLeNet's and VGG-16's convolutions in bf16 none beyond the
# 20th was faster.
CUDNN_MAX_ASKED, CUDNN_MAX_PROPOSED, CUDNN_MAX_TIMED = 100, 40, 24
# Work.
CUDNN_HEAVY_WORK = 2e10
# Of those timed, proposals that cuDNN has to compile first (about 0.4 s of a core each); where the
# work is heavy; and more of those that it has compiled before for other shapes (0.03 to 0.1 s). Of
# 64 fused convolutions, the first two are 1.7 % slower than the best of all, the first four 0.6 %.
CUDNN_MAX_COMPILED, CUDNN_MAX_COMPILED_HEAVY, CUDNN_MAX_COMPILED_AGAIN = 2, 3, 2
# What is compiled first: cuDNN 9.19 proposes it late, but it was the fastest plan, or within 6 % of
# it, for 14 of 21 heavy convolutions of CaffeNet, GoogLeNet and VGG-16 in bf16.
CUDNN_OFTEN_BEST = "eng4_k24=2"

# -- how configurations are ranked -----------------------------------------------------------------

# Bytes a cycle, from the cache that all share, and from the memory.
CACHE_BYTES, MEMORY_BYTES = 36, 20
# Cycles in which the results of a tile are stored; those that a group's products of a part of the
# filters should take.
IMPLICIT_GEMM_EPILOGUE, IMPLICIT_GEMM_MIN_PRODUCTS = 1500, 96
# Bytes a cycle, as above.
WGRAD_TF32_CACHE_BYTES, WGRAD_TF32_MEMORY_BYTES = 26, 2000 / 132
# Cycles to read the left operand of a product, and to transpose 8 pixels of an output: they add up,
# as all wait for shared memory.
WGRAD_TF32_READING, WGRAD_TF32_TRANSPOSING = 16, 0.6
# Cycles in which a stage begins and ends, and a block.
WGRAD_TF32_STAGE, WGRAD_TF32_LATENCY = 200, 6000
WGRAD_16BIT_STAGE, WGRAD_16BIT_LATENCY = 100, 4000
# Cycles until a block multiplies; words a cycle from the cache, in all, and for a thread.
SMALL_MMA_LATENCY, SMALL_MMA_WORDS, SMALL_MMA_WORDS_A_THREAD = 3000, 12, 0.045
# Parameters that a block updates. With 8,192 nets of many parameters took 6 to 8 % longer.
UPDATE_ELEMENTS = 1024
