"""What goes into the recorded job: this folder is put in front of its PYTHONPATH. Standard library only."""
