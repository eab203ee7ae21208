"""Which samples, in which order, in which batch, by which rank: pure functions, no files, no clock."""
