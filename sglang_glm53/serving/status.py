"""Owns the status: what a scheduler serves, read from its loaded modules, as a table and in /server_info."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import torch
from sglang.srt.platforms import current_platform
from sglang.srt.runtime_context import get_parallel

from sglang_glm53 import __version__
from sglang_glm53.disaggregation import status as pd_status
from sglang_glm53.kernels import backend
from sglang_glm53.model import nextn
from sglang_glm53.overlap import strategy
from sglang_glm53.serving import hooks
from sglang_glm53.topk import selection

logger = logging.getLogger("sglang_glm53")


def _class_path(module: object) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _describe_layers(model: Any) -> dict[str, Any]:
    layers = [model.model.layers[i] for i in range(model.model.start_layer, model.model.end_layer)]
    full = [layer.layer_id for layer in layers if layer.self_attn.indexer is not None]
    bias = next(
        (layer.mlp.gate.e_score_correction_bias for layer in layers if hasattr(layer.mlp, "gate")), None
    )
    return {
        "first_layer": model.model.start_layer,
        "layers": len(layers),
        "full_layers": full,
        "shared_layers": len(layers) - len(full),
        "attention": dict(Counter(_class_path(layer.self_attn) for layer in layers)),
        "mlp": dict(Counter(_class_path(layer.mlp) for layer in layers)),
        "router_bias_dtype": None if bias is None else str(bias.dtype).removeprefix("torch."),
    }


def _describe_pool(pool: Any) -> dict[str, Any]:
    row, index = pool.kv_buffer[0], [page for page in pool.index_k_with_scale_buffer if page.shape[0]]
    return {
        "class": _class_path(pool),
        "page_size": pool.page_size,
        "kv_dtype": str(pool.dtype).removeprefix("torch."),
        "kv_row_bytes": row[0].nbytes,
        "index_layers": len(index),
        "index_dtype": _index_dtype(index),
        "index_page_bytes": index[0][0].nbytes if index else 0,
    }


def _index_dtype(pages: list[torch.Tensor]) -> str | None:
    if not pages:
        return None
    # uint8 pages hold e4m3 values and their scales.
    return "float8_e4m3fn" if pages[0].dtype == torch.uint8 else str(pages[0].dtype).removeprefix("torch.")


def describe(scheduler: Any) -> dict[str, Any]:
    """The status of one scheduler, in builtin types only.

    scheduler: SGLang's Scheduler after loading. Entries are read from the loaded objects, none from a flag.
    """
    runner = scheduler.tp_worker.model_runner
    model, parallel = runner.model, get_parallel()
    fusions = [*model.fusions(), selection.fusion(), nextn.fusion(scheduler)]
    return {
        "version": __version__,
        "seams": hooks.fingerprint(),
        "model": _class_path(model),
        "platform": _class_path(current_platform),
        "attention_backend": _class_path(runner.attn_backend),
        "kernels": backend.settings().kernels,
        "rank": {
            "tp": parallel.tp_rank,
            "attn_dp": parallel.attn_dp_rank,
            "pp": parallel.pp_rank,
            "moe_ep": parallel.moe_ep_rank,
        },
        "schedule": _describe_layers(model),
        "fusions": {fusion.name: fusion.describe() for fusion in fusions},
        "overlap": strategy.describe(model.model.first_k_dense_replace),
        "mtp": nextn.describe(scheduler),
        "pools": _describe_pool(runner.token_to_kv_pool),
    }


def _fusion_row(entry: dict[str, Any]) -> str:
    """A fusion's state and the reasons for it; its counters belong to /server_info alone."""
    return "; ".join(filter(None, (entry["state"], entry["reason"], entry.get("note"))))


def _mtp_row(entry: dict[str, Any]) -> str:
    if entry["state"] == "off":
        return _fusion_row(entry)
    sharing = "one selection for all steps" if entry["shared_selection"] else "a selection in each step"
    return f"{entry['model']}, {entry['steps']} steps, {sharing}"


def rows(status: dict[str, Any]) -> list[tuple[str, str]]:
    """The start-up table: (what, how it stands), for people."""
    schedule, pools = status["schedule"], status["pools"]
    layers = f"{schedule['layers']} from {schedule['first_layer']}"
    sharing = f"{len(schedule['full_layers'])} full, {schedule['shared_layers']} shared"
    pages = f"{pools['index_page_bytes']} bytes a page, {pools['index_layers']} layers"
    return [
        ("model", status["model"]),
        ("platform", status["platform"]),
        ("attention", f"{status['attention_backend']}, kernels {status['kernels']}"),
        (
            "layers",
            f"{layers}: {sharing}",
        ),
        ("KV pool", f"{pools['kv_dtype']}, {pools['kv_row_bytes']} bytes a row, page {pools['page_size']}"),
        (
            "index pool",
            f"{pools['index_dtype']}, {pages}",
        ),
        ("router bias", str(schedule["router_bias_dtype"])),
        ("overlap", _fusion_row(status["overlap"])),
        ("MTP", _mtp_row(status["mtp"])),
        *((f"fusion {name}", _fusion_row(entry)) for name, entry in status["fusions"].items()),
        ("rank", ", ".join(f"{name} {rank}" for name, rank in status["rank"].items())),
    ]


def table(status: dict[str, Any]) -> str:
    """The start-up table as aligned text."""
    lines = rows(status)
    width = max(len(what) for what, _ in lines)
    head = f"sglang-glm53 {status['version']}, seams {status['seams']}"
    return "\n".join([head, *(f"  {what:<{width}}  {how}" for what, how in lines)])


def log_status(scheduler: Any) -> None:
    """BEFORE Scheduler.get_init_info, which SGLang calls once on a finished scheduler: log the table."""
    logger.info("%s", table(describe(scheduler)))


def add_status(result: Any, scheduler: Any, recv_req: Any) -> Any:
    """AFTER Scheduler.get_internal_state: add the status under "glm53".

    result: SGLang's GetInternalStateReqOutput, whose internal_state dict /server_info shows per DP group.
    """
    status = describe(scheduler)
    pair = pd_status.describe(scheduler)
    result.internal_state["glm53"] = {**status, "pair": pair, "table": table(status)}
    return result
