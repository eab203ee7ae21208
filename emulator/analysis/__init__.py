"""Numbers from step logs: pure functions of arrays, no files, no clock."""
