"""A run for readers: an HTML page, Markdown, and the claims as JSON."""
