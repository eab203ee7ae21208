"""Import MLPerf Storage's and DLIO's YAML files and result folders, and export results in their layout."""
