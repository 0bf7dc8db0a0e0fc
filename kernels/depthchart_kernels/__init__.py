"""Chunked-scan and paging kernels of depthchart; knows nothing of the toolkit.

One public function an operator; ``impl`` says who computes it: "reference" (float64, one token at a time, the
specification), "chunked" (plain torch, the CPU's fast path), "triton" (CUDA) or "auto". Triton is imported only when
it is asked for.
"""

from depthchart_kernels.attention import Attended, merge_attention, paged_attention
from depthchart_kernels.batch import Batch, make_batch
from depthchart_kernels.convolution import causal_conv1d
from depthchart_kernels.delta_rule import gated_delta, kda
from depthchart_kernels.gates import beta_gate, gated_delta_gate, kda_gate, l2norm, ssd_gate
from depthchart_kernels.mamba2 import ssd
from depthchart_kernels.paging import (
    Extended,
    alloc_extend,
    copy_states,
    gather_kv,
    scatter_kv,
    write_page_table,
)
from depthchart_kernels.steps import (
    StepSlots,
    causal_conv1d_step,
    gated_delta_step,
    kda_step,
    make_step,
    ssd_step,
)

__all__ = [
    "Attended",
    "Batch",
    "Extended",
    "StepSlots",
    "alloc_extend",
    "beta_gate",
    "causal_conv1d",
    "causal_conv1d_step",
    "copy_states",
    "gated_delta",
    "gated_delta_gate",
    "gated_delta_step",
    "gather_kv",
    "kda",
    "kda_gate",
    "kda_step",
    "l2norm",
    "make_batch",
    "make_step",
    "merge_attention",
    "paged_attention",
    "scatter_kv",
    "ssd",
    "ssd_gate",
    "ssd_step",
    "write_page_table",
]
