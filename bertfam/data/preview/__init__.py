"""Training rows for people: as records, as statistics, in a terminal and as a page."""
