"""Who of a queue is next: preferences of batchers, one a file, and the ageing that keeps each of them fair."""
