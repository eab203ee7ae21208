"""The HTML page of a result, and comparisons of results."""
