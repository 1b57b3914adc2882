"""Owns the way to the CUDA sources: csrc inside an installed wheel, or beside the package in a checkout."""

from __future__ import annotations

from pathlib import Path

# Other projects install a stray `csrc` into site-packages too; this file tells ours from theirs.
_OURS = Path("include", "glm53", "layout.cuh")


_PACKAGE = Path(__file__).resolve().parent


def csrc_dir(package: Path = _PACKAGE) -> Path:
    """The folder that holds include/glm53 and the kernels.

    package: the folder of the sglang_glm53 package.
    Raises FileNotFoundError naming both places that were searched.
    """
    in_wheel, in_checkout = package / "csrc", package.parent / "csrc"
    for place in (in_wheel, in_checkout):
        if (place / _OURS).is_file():
            return place
    raise FileNotFoundError(
        f"the CUDA sources are missing: neither {in_wheel / _OURS} (an installed wheel) nor "
        f"{in_checkout / _OURS} (a checkout) exists; reinstall the "
        "wheel, or run `pip install --force-reinstall --no-deps .` in a whole checkout"
    )
