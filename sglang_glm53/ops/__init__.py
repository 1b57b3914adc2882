"""Owns nothing: one module for each kernel's function, its card in sglang_glm53/cards.py."""
