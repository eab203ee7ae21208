"""Recording of a real training job, run unchanged, as a workload for replay on any storage."""
