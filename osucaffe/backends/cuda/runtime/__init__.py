"""What any CUDA program needs: the device, compiled kernels, launches, streams, graphs."""
