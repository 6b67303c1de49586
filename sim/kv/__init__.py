"""KV memory: who holds which blocks, and what gives way when they run short."""
