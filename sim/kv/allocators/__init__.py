"""One allocator a file."""
