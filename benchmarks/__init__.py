"""Benchmarks of bertfam and its peers; README.md describes them."""
