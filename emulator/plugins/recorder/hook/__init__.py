"""Code that runs inside the recorded job: this folder is put in front of its PYTHONPATH. Stdlib only."""
