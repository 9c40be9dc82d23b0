"""Detection of silent data corruption."""
