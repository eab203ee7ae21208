"""Measure the storage's own limits by fio or rados bench, to compare a training's knee with."""
