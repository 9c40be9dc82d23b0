"""Display of training rows: records, statistics, terminal output and an HTML page."""
