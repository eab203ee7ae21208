"""Code that runs inside the recorded job, through its PYTHONPATH. It uses only the standard library."""
