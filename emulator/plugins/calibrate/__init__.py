"""Calibration: the step time of a real accelerator, as a profile that workloads name."""
