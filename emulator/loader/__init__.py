"""How a rank reads: PyTorch's DataLoader, or direct reads into reused buffers. Same bytes, same order."""
