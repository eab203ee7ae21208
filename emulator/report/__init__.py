"""Tables, plots and the page: from result files only."""
