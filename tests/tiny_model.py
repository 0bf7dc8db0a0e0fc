"""A model whose numbers are small enough for hand-made sums: one attention layer and two recurrent ones in chunks of 4."""

from dataclasses import replace

from depthchart.models import Model

TINY = Model(
    name="tiny",
    layers=3,
    attention_layers=1,
    attention_kind="gqa",
    q_heads=4,
    kv_heads=2,
    qk_dim=8,
    v_dim=8,
    recurrent_kind="gdn",
    recurrent_layers=2,
    key_heads=2,
    value_heads=4,
    key_dim=8,
    value_dim=16,
    conv_kernel=4,
    conv_channels=96,  # keys and queries 2 * 2 * 8, values 4 * 16
    chunk_width=4,
    hidden_size=32,
    params=1000,
    active_params=250,
)

PLAIN = replace(TINY, conv_kernel=0, conv_channels=0, active_params=1000)
"""Without convolution, and all parameters at work for every token."""
