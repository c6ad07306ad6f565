"""Messages as TF-gRPC-Bench sends them: `osucaffe bench rpc`."""
