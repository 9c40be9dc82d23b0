"""HTML pages that need no network: the frame, tables, drawings of curves, and the visible form of text."""
