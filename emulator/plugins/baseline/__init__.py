"""Baselines: the storage's own limits by fio or rados bench, which a training knee is compared with."""
