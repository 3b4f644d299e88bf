"""What the process needs beside mathematics: files, threads, clusters, progress bars, JSON."""
