"""From step logs to numbers: pure functions of arrays, no files, no clock."""
