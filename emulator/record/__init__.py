"""Measurements: the step log, the result, the machine. The same for every producer."""
