"""Streams of a row's key that noise reads, one for each purpose, so that all draws of a row are independent.

The construction of rows reads streams 16 to 31 of the same key.
"""

SELECTION, ACTION, REPLACEMENT, ROUNDING, SPAN_LENGTHS = range(1, 6)
NOISE_SEGMENTS, CLEAR_SEGMENTS = range(6, 8)
WINDOWS, SHUFFLE, ROTATE, DECISION, ORDER = range(8, 13)
FILL_LENGTHS, FILL_PLACES, FILL_ORDER = range(13, 16)
INSERT, ROLL = range(32, 34)
SPANS, FILLING = range(34, 36)
ENTITY_ACTION, ENTITY_REPLACEMENT = range(36, 38)
