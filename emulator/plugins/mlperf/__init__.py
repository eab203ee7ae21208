"""MLPerf Storage's and DLIO's artefacts: their YAML and result folders in, folders in their layout out."""
