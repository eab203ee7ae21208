"""Measurement of the storage's own limits with fio or rados bench, for comparison with a training."""
