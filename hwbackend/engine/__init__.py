"""The miniature engine: a real transformer on real paged KV, under the simulator's own `EngineCore` and policies."""
