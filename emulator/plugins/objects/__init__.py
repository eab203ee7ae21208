"""Object stores: datasets at s3:// and rados:// URLs."""
