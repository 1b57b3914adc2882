"""Owns the selection: which positions of the KV cache a row of the indexer's scores chooses."""
