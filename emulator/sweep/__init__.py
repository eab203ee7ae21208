"""Which process counts, in what order, when to stop."""
