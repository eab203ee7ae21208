"""File formats of samples: how each is written, and where its arrays lie."""
