"""Owns nothing: for each kernel the shortest correct torch, written without a look at the kernel."""
