"""Messages as TF-gRPC-Bench sends them: `python -m benchmarks.rpc.bench_rpc`."""
