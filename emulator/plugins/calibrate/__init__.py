"""Calibration: measure the step time of a real accelerator, as a profile for workloads."""
