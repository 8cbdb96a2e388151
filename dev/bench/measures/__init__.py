"""What is measured: one file each, with a generator of samples for one row."""
