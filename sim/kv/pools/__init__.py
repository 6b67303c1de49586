"""Pools of KV blocks: one for each tier, with blocks that may move between them."""
