"""Running a compiled kernel: buffers of a rank, and backends."""
