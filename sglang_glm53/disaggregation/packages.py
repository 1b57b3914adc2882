"""Owns the system packages that a prefill/decode pair needs: which are missing, and their installation."""

from __future__ import annotations

import ctypes

# Debian's package of each library that Mooncake, which carries a pair's KV, loads even to use TCP alone.
SYSTEM_PACKAGES = {"libibverbs.so.1": "libibverbs1", "librdmacm.so.1": "librdmacm1"}


def missing_packages() -> list[str]:
    """The packages of those of these libraries that do not load here."""
    missing = []
    for library, package in SYSTEM_PACKAGES.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            missing.append(package)
    return missing


def install_command(packages: list[str]) -> str:
    """The command, for root on Debian, that installs them."""
    return " ".join(["apt-get install", *packages])
