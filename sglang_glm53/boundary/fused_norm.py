"""Owns the boundary fusion: a norm quantises its output once, for the projections that take it in FP8.

The bf16 tensor stays the value that flows. A site, one norm with its projections, attaches the FP8 form to
the tensor object; a projection of the same site takes it from there. Slices, gathers and copies are other
objects and carry nothing: their projections quantise for themselves, as in stock SGLang.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers import deep_gemm_wrapper
from sglang.srt.layers.dp_attention import get_is_extend_in_batch
from sglang.srt.layers.flashinfer_comm_fusion import uses_cutedsl_ar_fusion
from sglang.srt.layers.layer_boundary.layout import SumGroup, is_dense_ffn_fully_dp
from sglang.srt.layers.layer_boundary.residual import add_norm
from sglang.srt.layers.layer_boundary.residual.add_norm import NormQuantReadout, NormReadout
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.moe.utils import (
    get_deepep_mode,
    get_moe_a2a_backend,
    is_moe_input_scattered_across_dp_ranks,
)
from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.runtime_context import get_forward, get_parallel

from sglang_glm53.boundary import allreduce
from sglang_glm53.boundary.producers import (
    MAKERS,
    Made,
    Quantised,
    choose_maker,
    describes,
    dispatch_layout,
    input_layouts,
    unfit,
)
from sglang_glm53.fusion import ATTENTION_INPUT, FFN_INPUT, Q_A, Declined, Fusion
from sglang_glm53.kernels import backend
from sglang_glm53.kernels.fp8 import ScaleLayout

NAMES = (ATTENTION_INPUT, FFN_INPUT, Q_A)
DISPATCH = "DeepEP normal dispatch"
NOT_TAKEN = "not taken, other rows or another layout reached it"
NO_PROJECTION = "the shared experts are served with the routed ones: no projection reads this norm"
GATHERED = "the rows are gathered over attention DP after the norm"
_CARRIER = "_glm53_quantised"
_SITE = "_glm53_site"
_completer = operator.attrgetter(f"{_SITE}.complete")


class Site:
    """One norm and the projections that take its output in FP8; the norm knows its site.

    linears: those projections by name. gathered: other rows than the norm's reach them. dispatchers: DeepEP's
    normal dispatchers that send the norm's output. record: calls of the norm, ran by maker. taken: how often
    each projection took what it made.
    """

    def __init__(
        self,
        fusion: str,
        norm: Any,
        linears: dict[str, Any],
        *,
        gathered: bool = False,
        dispatchers: Iterable[Any] = (),
    ) -> None:
        self.record, self.norm, self.linears, self.gathered = Fusion(fusion), norm, linears, gathered
        self.dispatchers = tuple(dispatchers)
        self.taken: Counter[str] = Counter()
        setattr(norm, _SITE, self)
        for name, linear in linears.items():
            linear.register_forward_pre_hook(functools.partial(self._give, name))
        for dispatcher in self.dispatchers:
            dispatcher.dispatch_a = functools.partial(self._dispatch_a, dispatcher, dispatcher.dispatch_a)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """A saved tensor takes its site along, and the hooks of the site's projections cannot be saved."""
        return str, (f"site of {self.record.name}",)

    @functools.cached_property
    def layouts(self) -> tuple[ScaleLayout, ...] | Declined:
        """The layouts that every projection takes, best first; else why the site never fuses."""
        if self.gathered:
            return Declined(GATHERED)
        if why := unfit(self.norm.weight):
            return why
        if not self.linears:
            return Declined(NO_PROJECTION)
        common: tuple[ScaleLayout, ...] | None = None
        for name, linear in self.linears.items():
            found = input_layouts(linear)
            if isinstance(found, Declined):
                return Declined(f"{name}: {found.reason}")
            common = found if common is None else tuple(one for one in common if one in found)
        return common or Declined("the projections take no common scale layout")

    def normalise(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Add, normalise and quantise in one: (the output, which carries its FP8 form; the residual).

        x, residual: [rows, channels]; without a residual x is returned as one. None, before anything is
        touched, where SGLang's own norm must run.
        """
        # A traced graph knows no tensor objects, and a counter in it would be a constant.
        if torch.compiler.is_compiling():
            return None
        chosen = self._choose(x, residual)
        if isinstance(chosen, Declined):
            self.record.decline(chosen)
            return None
        maker, layout = chosen
        return self._attach(maker, MAKERS[maker](self.norm, x, residual, layout))

    def complete(
        self, x: torch.Tensor, residual: torch.Tensor, attention_tp: bool
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """normalise() for an x that owes a sum over TP ranks: the same kernel completes it.

        attention_tp: the sum is the attention's, not the MoE's. None, before anything is touched and before
        any collective of a tensor, where SGLang's all-reduce + add + norm kernel must run.
        """
        layouts = self._wanted(x)
        if isinstance(layouts, Declined):
            why: Declined | None = layouts
        else:
            kernels = backend.settings().kernels
            why = allreduce.declines(layouts, kernels, self.norm, x, residual, attention_tp)
        if why:
            self.record.decline(why)
            return None
        return self._attach(allreduce.MAKER, allreduce.make(self.norm, x, residual, attention_tp))

    def _attach(self, maker: str, made: Made) -> tuple[torch.Tensor, torch.Tensor]:
        y, residual, quantised = made
        setattr(y, _CARRIER, (self, quantised))
        self.record.ran[maker] += 1
        return y, residual

    def _wanted(self, x: torch.Tensor) -> tuple[ScaleLayout, ...] | Declined:
        if isinstance(self.layouts, Declined):
            return self.layouts
        if x.shape[0] == 0:
            return Declined("no rows")
        if get_forward().sp_active:
            return Declined("a sequence-parallel projection gathers its own rows")
        return self.layouts

    def _choose(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[str, ScaleLayout] | Declined:
        layouts = self._wanted(x)
        if isinstance(layouts, Declined):
            return layouts
        if self.dispatchers and get_deepep_mode().resolve(get_is_extend_in_batch()).is_normal():
            # The dispatch takes one layout only; a projection may take it second best.
            layouts = tuple(sorted(layouts, key=lambda layout: layout is not dispatch_layout()))
        return choose_maker(backend.settings().kernels, self.norm, x, residual, layouts)

    def take(self, x: Any, name: str, layouts: Iterable[ScaleLayout] | None = None) -> Quantised | None:
        """The FP8 form that x carries from this site's norm, for the projection of that name; else None.

        Raises RuntimeError when x changed since; checked where a check is cheap beside the product, on a CPU.
        """
        if torch.compiler.is_compiling():
            return None
        site, quantised = getattr(x, _CARRIER, (None, None))
        if site is not self or quantised is None:
            return None
        if layouts is not None and quantised.layout not in layouts:
            return None
        if not x.is_cuda and not describes(quantised, x):
            raise RuntimeError(f"{name}: its input changed after {self.record.name} had quantised it")
        self.taken[name] += 1
        found: Quantised = quantised
        return found

    def _give(self, name: str, linear: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Forward pre-hook of a projection: its FP8 form in place of the tensor that carries one."""
        quantised = self.take(args[0] if args else None, name)
        return None if quantised is None else ((quantised.q, quantised.scales), *args[1:])

    def _dispatch_a(
        self, dispatcher: Any, original: Callable[..., Any], hidden_states: torch.Tensor, topk_output: Any
    ) -> Any:
        """DeepEP's normal dispatch_a, without its own quantisation where the tensor carries it.

        Source: SGLang 0.5.23, layers/moe/token_dispatcher/deepep.py _DeepEPDispatcherImplNormal.dispatch_a.
        """
        quantises = deep_gemm_wrapper.ENABLE_JIT_DEEPGEMM and dispatcher.use_fp8
        quantised = self.take(hidden_states, DISPATCH, [dispatch_layout()]) if quantises else None
        if quantised is None:
            if quantises and isinstance(self.layouts, tuple):
                self.record.declined[f"{DISPATCH}: {NOT_TAKEN}"] += 1
            return original(hidden_states=hidden_states, topk_output=topk_output)
        from sglang.srt.layers.moe.token_dispatcher import deepep

        topk_ids = topk_output.topk_ids.to(torch.int64)
        event = deepep.Buffer.capture() if dispatcher.async_finish else None
        return (quantised.q, quantised.scales), topk_ids, topk_output.topk_weights, event


class _QuantisingRead:
    """What both reads add to SGLang's: where the norm has a site that takes the call, that site runs it."""

    def read(
        self,
        residual: torch.Tensor,
        norm: Any,
        quant_format: str = "",
        post_residual_addition: torch.Tensor | None = None,
    ) -> Any:
        found = None if quant_format else getattr(norm, _SITE).normalise(residual, None)
        return found or super().read(residual, norm, quant_format, post_residual_addition)  # type: ignore[misc]

    def update_and_read(
        self,
        update: Any,
        hidden_states: torch.Tensor,
        residual: torch.Tensor | None,
        norm: Any,
        quant_format: str = "",
        post_residual_addition: torch.Tensor | None = None,
    ) -> Any:
        found = None
        if update.is_plain_add and not quant_format and post_residual_addition is None:
            found = getattr(norm, _SITE).normalise(hidden_states, residual)
        return found or super().update_and_read(  # type: ignore[misc]
            update, hidden_states, residual, norm, quant_format, post_residual_addition
        )


@dataclass(frozen=True)
class AttentionRead(_QuantisingRead, NormQuantReadout):  # type: ignore[misc]
    """SGLang's read of the attention's input, with the same facts, through the norm's site."""

    completing_fusions = (allreduce.fusion(SumGroup.MOE_OUTPUT, _completer),)


@dataclass(frozen=True)
class FfnRead(_QuantisingRead, NormReadout):  # type: ignore[misc]
    """SGLang's read of the FFN's input, with the same facts, through the norm's site."""

    completing_fusions = (allreduce.fusion(SumGroup.ATTN_TP, _completer),)


class QuantisingNorm(RMSNorm):  # type: ignore[misc]
    """SGLang's RMSNorm through a site of its own; without one it is that norm."""

    def forward(self, x: torch.Tensor, *args: Any, **named: Any) -> Any:
        """x: [rows, channels]; with a residual or any other argument it is SGLang's call."""
        site: Site | None = getattr(self, _SITE, None)
        found = None if site is None or args or named else site.normalise(x, None)
        return super().forward(x, *args, **named) if found is None else found[0]


def is_on(fusion: str) -> bool:
    """Whether GLM53_DISABLE leaves a fusion on."""
    return fusion not in backend.settings().disabled


def with_reads(attention: Any, ffn: Any) -> tuple[Any, Any]:
    """The two stage declarations of a layer, each with this module's read where its fusion is on."""
    if is_on(ATTENTION_INPUT):
        attention = dataclasses.replace(attention, read=AttentionRead())
    if is_on(FFN_INPUT):
        ffn = dataclasses.replace(ffn, read=FfnRead())
    return attention, ffn


def _gathered_after_norm(sparse: bool) -> bool:
    """Whether the FFN's input is read by each attention-DP rank and then gathered.

    With attention TP too the rows are gathered first. Source: SGLang 0.5.23,
    layers/layer_boundary/boundary.py _select_entry_step.
    """
    parallel = get_parallel()
    own_rows = is_moe_input_scattered_across_dp_ranks() if sparse else is_dense_ffn_fully_dp()
    return bool(parallel.attn_dp_size > 1 and parallel.attn_tp_size == 1 and not own_rows)


def _normal_dispatchers(experts: Any) -> list[Any]:
    """DeepEP's dispatchers for prefill, one a micro-batch; none without DeepEP or in low-latency mode."""
    inners = experts.dispatcher._inners if get_moe_a2a_backend().is_deepep() else ()
    return [inner._normal_dispatcher for inner in inners if inner.deepep_mode.enable_normal()]


def _ffn_site(layer: Any) -> Site:
    mlp, sparse = layer.mlp, layer.is_layer_sparse
    if not sparse:
        linears = {"mlp.gate_up_proj": mlp.gate_up_proj}
    elif mlp.shared_experts is None:
        linears = {}
    else:
        linears = {"mlp.shared_experts.gate_up_proj": mlp.shared_experts.gate_up_proj}
    return Site(
        FFN_INPUT,
        layer.post_attention_layernorm,
        linears,
        gathered=_gathered_after_norm(sparse),
        dispatchers=_normal_dispatchers(mlp.experts) if sparse else (),
    )


def _attention_site(layer: Any) -> Site:
    projection = layer.self_attn.fused_qkv_a_proj_with_mqa
    return Site(ATTENTION_INPUT, layer.input_layernorm, {"fused_qkv_a_proj_with_mqa": projection})


def _q_a_site(layer: Any) -> Site:
    attention = layer.self_attn
    stock = attention.q_a_layernorm
    attention.q_a_layernorm = QuantisingNorm(stock.hidden_size, eps=stock.variance_epsilon)
    linears = {"q_b_proj": attention.q_b_proj}
    if attention.indexer is not None:
        linears["indexer.wq_b"] = attention.indexer.wq_b
    return Site(Q_A, attention.q_a_layernorm, linears)


_SITES = {ATTENTION_INPUT: _attention_site, FFN_INPUT: _ffn_site, Q_A: _q_a_site}


def bind(layer: Any) -> None:
    """Give a new decoder layer its sites, as layer.boundary_sites: one for each fusion that is on."""
    layer.boundary_sites = tuple(site(layer) for fusion, site in _SITES.items() if is_on(fusion))


def _notes(fusion: str, sites: list[Site]) -> list[str]:
    """Which calls of a norm never reach its site, or what serves them there, by this server's flags."""
    notes = []
    if fusion != Q_A and uses_cutedsl_ar_fusion():
        notes.append("SGLang's CuteDSL all-reduce fusion keeps the norms of the batches that it takes")
    elif fusion != Q_A and get_parallel().tp_size > 1 and add_norm.flashinfer_ar_fusion_applies(1):
        layouts = next((site.layouts for site in sites if isinstance(site.layouts, tuple)), None)
        notes.append(allreduce.note(layouts, backend.settings().kernels))
    if check_cuda_graph_backend(Phase.PREFILL, Backend.TC_PIECEWISE):
        notes.append("torch.compile traces prefill, with SGLang's norms")
    return notes


def _joined(name: str, sites: list[Site]) -> Fusion:
    """One fusion's record over the sites that it has in the layers."""
    if not is_on(name):
        return Fusion.switched_off(name)
    never = Counter(site.layouts.reason for site in sites if isinstance(site.layouts, Declined))
    on = len(sites) - never.total()
    listed = [f"{reason} ({count} of {len(sites)} layers)" for reason, count in never.items()]
    joined = Fusion(name, "on" if on else "declined", "; ".join(listed) or None)
    joined.note = "; ".join(_notes(name, sites)) or None
    taken = Counter[str]()
    for site in sites:
        taken.update(site.taken)
        joined.ran.update(site.record.ran)
        joined.declined.update(site.record.declined)
        for linear in site.linears:
            joined.declined[f"{linear}: {NOT_TAKEN}"] += site.record.ran.total() - site.taken[linear]
    joined.details = {"layers": on, "taken": dict(taken)}
    return joined


def fusions(layers: Iterable[Any]) -> list[Fusion]:
    """The record of each fusion of NAMES. layers: bound ones. details: the layers where it can run, and how
    often each projection took an FP8 form."""
    sites = [site for layer in layers for site in layer.boundary_sites]
    return [_joined(name, [site for site in sites if site.record.name == name]) for name in NAMES]
