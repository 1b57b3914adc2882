"""Owns two-batch overlap for a model whose layers share a selection."""
