"""Owns prefill/decode pairs: what two servers must agree on, and how it is compared."""
