"""The simulator: router, batcher, KV blocks, engine loop, cost model, studies."""
