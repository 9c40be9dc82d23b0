"""Analysis of trained models: attention, and the roles of heads."""
