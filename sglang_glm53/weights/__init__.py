"""Owns strict loading: which stored tensor fills which parameter, and every fault by name."""
