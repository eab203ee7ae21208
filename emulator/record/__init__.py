"""What was measured: the step log, the result, the machine. The same for every producer."""
