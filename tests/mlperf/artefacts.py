"""Files as DLIO writes them, small."""

from __future__ import annotations

UNET3D = """\
model: unet3d
framework: pytorch
workflow:
  generate_data: False
  train: True
dataset:
  data_folder: data/unet3d/
  format: npz
  num_files_train: 168
  num_samples_per_file: 1
  record_length: 146600628
  record_length_stdev: 68341808
  record_length_resize: 2097152
reader:
  data_loader: pytorch
  batch_size: 7
  read_threads: 4
  file_shuffle: seed
  sample_shuffle: seed
  colour: blue
train:
  epochs: 5
  computation_time: 0.323
metric:
  au: 0.90
"""
"""A workload file of DLIO, with one key that nobody knows."""
