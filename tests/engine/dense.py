"""The judge: the same weights in float64, whole texts at once, token by token; no cache, no pages, no kernels."""

from __future__ import annotations

import torch
from torch.nn.functional import silu, softplus


@torch.no_grad()
def dense_logits(model, texts):
    """Logits of several texts (lists of ids): a list of float64 [n, vocab]."""
    weights = {name: value.double().cpu() for name, value in model.state_dict().items()}
    longest = max(map(len, texts))
    ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
    config = model.config
    x = weights["embedding"][ids]
    for at, kind in enumerate(config.pattern):
        part = {
            name.removeprefix(f"blocks.{at}."): w
            for name, w in weights.items()
            if name.startswith(f"blocks.{at}.")
        }
        x = x + BLOCKS[kind](norm(x, weights[f"norms.{at}.weight"]), part, config)
    spread = 0.15  # of the embeddings: the head divides by it, so that logits spread by about one
    logits = norm(x, weights["last_norm.weight"]) @ weights["embedding"].T / (spread * config.width**0.5)
    return [row[: len(text)] for row, text in zip(logits, texts, strict=True)]


def norm(x, weight, eps=1e-6):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def mlp(x, w, config):
    return ((x @ w["up.weight"].T) * silu(x @ w["gate.weight"].T)) @ w["out.weight"].T


def rope(x, channels):
    """[batch, tokens, heads, dim]: pairs (i, i + half) turn by position / 10000^(i / half)."""
    half = channels // 2
    for i in range(half):
        angle = torch.arange(x.shape[1], dtype=torch.float64) * 10000.0 ** (-i / half)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b = x[..., i].clone(), x[..., i + half].clone()
        x = x.clone()
        x[..., i], x[..., i + half] = a * cos - b * sin, a * sin + b * cos
    return x


def attention(q, k, v):
    """Plain causal attention, [batch, tokens, heads, dim] each."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    future = torch.ones(q.shape[1], q.shape[1]).triu(1).bool()
    return torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(future, -torch.inf).softmax(-1), v)


def gqa(x, w, c):
    q = rope((x @ w["q.weight"].T).unflatten(-1, (c.heads, c.head_dim)), c.rope_dim)
    k, v = (x @ w["kv.weight"].T).unflatten(-1, (2, c.kv_heads, c.head_dim)).unbind(-3)
    wide = (z.repeat_interleave(c.heads // c.kv_heads, dim=2) for z in (rope(k, c.rope_dim), v))
    return attention(q, *wide).flatten(2) @ w["out.weight"].T


def mla(x, w, c):
    """The unabsorbed form: every token's latent is expanded to keys and values of every head."""
    q = (x @ w["q.weight"].T).unflatten(-1, (c.heads, c.head_dim + c.rope_dim))
    latent, turning = (x @ w["down.weight"].T).split([c.latent_dim, c.rope_dim], dim=-1)
    latent = norm(latent, w["norm.weight"])
    q = torch.cat([q[..., : c.head_dim], rope(q[..., c.head_dim :], c.rope_dim)], -1)
    shared = rope(turning[:, :, None], c.rope_dim).expand(-1, -1, c.heads, -1)
    k = torch.cat([torch.einsum("btl,hkl->bthk", latent, w["up_k"]), shared], -1)
    v = torch.einsum("btl,hkl->bthk", latent, w["up_v"])
    return attention(q, k, v).flatten(2) @ w["out.weight"].T


def convolve(x, weight):
    """Depthwise, causal; zeros lie before the text."""
    width = weight.shape[1]
    padded = torch.cat([x.new_zeros(x.shape[0], width - 1, x.shape[2]), x], dim=1)
    return silu(sum(padded[:, j : j + x.shape[1]] * weight[:, j] for j in range(width)))


def recurrent(x, w, c):
    mixed = convolve(x @ w["mix.weight"].T, w["conv"])
    keys = c.key_heads * c.key_dim
    q, k, v = mixed.split([keys, keys, c.state_heads * c.value_dim], dim=-1)
    repeat = c.state_heads // c.key_heads
    q, k = (z.unflatten(-1, (c.key_heads, c.key_dim)).repeat_interleave(repeat, dim=2) for z in (q, k))
    return q, k, v.unflatten(-1, (c.state_heads, c.value_dim))


def gate_out(y, x, w):
    y = norm(y, w["norm.weight"], 1e-5).flatten(2) * silu(x @ w["gate.weight"].T)
    return y @ w["out.weight"].T


def delta(x, w, c, per_channel):
    q, k, v = recurrent(x, w, c)
    q, k = (z / (z.square().sum(-1, keepdim=True) + 1e-6).sqrt() for z in (q, k))
    raw = x @ w["decay.weight"].T
    if per_channel:
        raw = raw.unflatten(-1, (c.state_heads, c.key_dim))
        decay = torch.exp(-w["a_log"].exp()[:, None] * softplus(raw + w["decay_bias"]))
    else:
        decay = torch.exp(-w["a_log"].exp() * softplus(raw + w["decay_bias"]))[..., None]
    beta = (x @ w["beta.weight"].T).sigmoid()
    state = x.new_zeros(x.shape[0], c.state_heads, c.key_dim, c.value_dim)
    out = []
    for t in range(x.shape[1]):
        state = state * decay[:, t, ..., None]
        read = torch.einsum("bhk,bhkv->bhv", k[:, t], state)
        change = beta[:, t, :, None] * (v[:, t] - read)
        state = state + k[:, t, ..., None] * change[..., None, :]
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state) * c.key_dim**-0.5)
    return gate_out(torch.stack(out, 1), x, w)


def mamba2(x, w, c):
    read, write, value = recurrent(x, w, c)
    dt = softplus(x @ w["decay.weight"].T + w["decay_bias"])
    state = x.new_zeros(x.shape[0], c.state_heads, c.value_dim, c.key_dim)
    out = []
    for t in range(x.shape[1]):
        keep = torch.exp(-w["a_log"].exp() * dt[:, t])[..., None, None]
        state = keep * state + (dt[:, t, :, None] * value[:, t])[..., None] * write[:, t, :, None]
        out.append(torch.einsum("bhpn,bhn->bhp", state, read[:, t]) + w["skip"][:, None] * value[:, t])
    return gate_out(torch.stack(out, 1), x, w)


BLOCKS = {
    "mlp": mlp,
    "gqa": gqa,
    "mla": mla,
    "gdn": lambda x, w, c: delta(x, w, c, per_channel=False),
    "kda": lambda x, w, c: delta(x, w, c, per_channel=True),
    "mamba2": mamba2,
}
