"""What a run found, for readers: a page, tables in Markdown, and the claims as data."""
