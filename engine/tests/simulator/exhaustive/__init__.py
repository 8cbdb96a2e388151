"""Every run within bounds, instead of runs by chance."""
