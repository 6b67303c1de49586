"""Trace files -> the canonical trace: one format a file; `detect_format` looks at the content."""

from workloads.readers.detect import FORMATS, detect_format, read_trace

__all__ = ["FORMATS", "detect_format", "read_trace"]
