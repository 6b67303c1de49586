"""A prefix cache, or an allocator, alone over a recorded trace."""
