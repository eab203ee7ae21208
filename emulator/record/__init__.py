"""Recorded measurements: the step log, the result, the machine. The format is the same for every producer."""
