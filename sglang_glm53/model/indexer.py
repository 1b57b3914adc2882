"""GLM-5.3's lightning indexer."""

from __future__ import annotations

from typing import Any

from sglang.srt.layers.attention.dsa.dsa_indexer import Indexer

from sglang_glm53.topk import selection


class Glm53Indexer(Indexer):  # type: ignore[misc]
    """SGLang's indexer under a class of ours, so that a platform or a kernel can serve GLM-5.3's alone."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        selection.serve()
