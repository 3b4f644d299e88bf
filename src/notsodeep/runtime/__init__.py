"""The process rather than the mathematics: files, threads, clusters, progress bars, JSON."""
