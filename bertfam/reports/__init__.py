"""Pages of runs: the files of a MODEL_DIR, or of several, on one HTML page."""
