"""Initial parameters and optimizer states from other runs."""
