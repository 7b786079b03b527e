"""The sums of a plan with their numbers filled in, for people who want to check them. Pure: lines of text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from kvgate.planner.sizes import binary, in_unit, plain
from kvgate_policies.capacity_dtypes import ELEMENT_BYTES, heads_on_gpu, token_bytes
from kvgate_policies.model_shape import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvgate.planner.question import Sizes
    from kvgate_policies.capacity import Plan
    from kvgate_policies.model_shape import KVLayer


@dataclass(frozen=True, slots=True)
class Line:
    """One sum."""

    what: str
    sum: str


def of_model(plan: Plan) -> Iterator[Line]:
    """Bytes of a token, a block and a session."""
    per_gpu = " on each GPU" if plan.setup.gpus > plan.setup.data_parallel else ""
    for number, (layer, count) in enumerate(_alike(plan)):
        yield Line(f"one token{per_gpu}" if number == 0 else "", _token_sum(plan, layer, count))
    if len(_alike(plan)) > 1:
        yield Line("", f"together {_bytes(plan.bytes_per_token)}")
    if plan.bytes_per_token_long < plan.bytes_per_token:
        yield Line(
            "one token, later", f"{_bytes(plan.bytes_per_token_long)}: what has left the windows is dropped"
        )
    yield from _block(plan)
    yield _session(plan)


def _alike(plan: Plan) -> list[tuple[KVLayer, int]]:
    """Layers of the fullest stage that write the same for a token, with their count."""
    layers = [layer for layer in plan.setup.shape.layers if layer.kind is not Kind.STATE]
    if plan.setup.draft_tokens:
        layers += plan.setup.shape.draft_layers
    seen: dict[object, tuple[KVLayer, int]] = {}
    for layer in layers:
        key = (layer.kind, layer.kv_heads, layer.head_dim, layer.head_dim_v, layer.window)
        first, count = seen.get(key, (layer, 0))
        seen[key] = (first, count + 1)
    return list(seen.values())


def _token_sum(plan: Plan, layer: KVLayer, count: int) -> str:
    one = token_bytes(layer, plan.kv_dtype, plan.setup.tensor_parallel)
    stages = plan.setup.pipeline_parallel
    total = f"{one:,} bytes × {count} layers" + (
        f", of which the fullest of {stages} stages counts" if stages > 1 else ""
    )
    if layer.kind in {Kind.LATENT, Kind.INDEX}:
        what = "compressed key-and-value vector" if layer.kind is Kind.LATENT else "index key"
        return f"one {what} of {one:,} bytes × {count} layers = {_bytes(one * count)}"
    element = ELEMENT_BYTES.get(plan.kv_dtype)
    heads = heads_on_gpu(layer.kv_heads, plan.setup.tensor_parallel)
    plural = "s" if heads > 1 else ""
    kind = "" if layer.kind is Kind.FULL else f" ({layer.kind} of {layer.window:,} tokens)"
    if element is None or layer.head_dim != layer.head_dim_v or stages > 1:
        return f"{total}{kind}, {plan.kv_dtype}: {_bytes(plan.bytes_per_token)}"
    return (
        f"2 (key and value) × {count} layers × {heads} head{plural} × {layer.head_dim} elements × "
        f"{element} byte{'s' if element > 1 else ''} ({plan.kv_dtype}) = {_bytes(one * count)}{kind}"
    )


def _block(plan: Plan) -> Iterator[Line]:
    if plan.one_group:
        tokens = plan.block_size
        yield Line(
            "one block", f"{plan.bytes_per_token:,} bytes × {tokens} tokens = {_bytes(plan.bytes_per_block)}"
        )
        return
    kinds = Counter((str(group.kind), len(group.members), group.page.tokens) for group in plan.groups)
    parts = [
        f"{count} of {layers} layers with {kind}" + (f" ({tokens} tokens a block)" if tokens else "")
        for (kind, layers, tokens), count in kinds.items()
    ]
    yield Line("KV groups", f"{len(plan.groups)} share one pool of blocks: {', '.join(parts)}")
    yield Line("one block", f"{_bytes(plan.bytes_per_block)}, as the largest group needs it")


def _session(plan: Plan) -> Line:
    tokens, parallel = plan.setup.max_model_len, plan.setup.context_parallel
    what = f"a session of {tokens:,} tokens"
    if not plan.one_group:
        sum_ = f"{plan.blocks_per_sequence:,} blocks × {plan.bytes_per_block:,} bytes"
        return Line(what, f"{sum_} = {_bytes(plan.bytes_per_sequence)}")
    shared = f" / {parallel} GPUs" if parallel > 1 else ""
    return Line(
        what,
        f"{plan.bytes_per_token:,} bytes × {tokens:,} tokens{shared} = {_bytes(plan.bytes_per_sequence)}",
    )


def of_pool(plan: Plan, sizes: Sizes | None) -> Line:
    """The memory that is left for KV cache."""
    if sizes is None:
        return Line("memory for KV cache", _bytes(plan.pool_bytes))
    gpus = plan.setup.gpus_per_engine
    weights = f"{sizes.weights} / {gpus} GPUs" if gpus > 1 else f"{sizes.weights}"
    left = f"{sizes.gpu} × {float(sizes.utilization):g} − {weights} (weights) − {sizes.overhead} (overhead)"
    return Line("memory for KV cache", f"{left} = {_pool(plan, sizes)}")


def _pool(plan: Plan, sizes: Sizes) -> str:
    """In the units that were typed, if they were the same, and in GiB."""
    same = sizes.gpu.unit == sizes.weights.unit == sizes.overhead.unit
    gib = in_unit(plan.pool_bytes, "GiB")
    own = in_unit(_exact(plan), sizes.gpu.unit) if same else gib
    return own if own == gib else f"{own} = {gib}"


def _exact(plan: Plan) -> Fraction:
    memory = plan.setup.memory
    if isinstance(memory, int):
        return Fraction(memory)
    return memory.left_bytes(plan.setup.gpus_per_engine)


def of_ceiling(plan: Plan) -> Iterator[Line]:
    """The two ceilings."""
    copies = plan.setup.data_parallel
    times = f" × {copies} copies" if copies > 1 else ""
    pool, block, session = (
        binary(plan.pool_bytes),
        binary(plan.bytes_per_block),
        binary(plan.bytes_per_sequence),
    )
    yield Line("by the memory", f"{pool} / {session}, rounded down{times} = {plan.max_sequences:,} sessions")
    yield Line(
        "blocks", f"{pool} / {block}, rounded down = {plan.num_gpu_blocks:,}, one of them the null block"
    )
    yield Line(
        "in vLLM's blocks",
        f"{max(plan.num_gpu_blocks - 1, 0):,} usable / {plan.blocks_per_sequence:,} for a session, "
        f"rounded down{times} = {plan.max_sequences_engine:,} sessions",
    )
    steady = plan.steady_blocks(plan.setup.max_model_len)
    if steady < plan.blocks_per_sequence:
        many = copies * (max(plan.num_gpu_blocks - 1, 0) // steady)
        yield Line(
            "once they answer",
            f"a session keeps {steady:,} blocks, as windows hold no more: up to {many:,}. The number above is for "
            "prompts being read, all at once",
        )


def longest_for(plan: Plan, sequences: int) -> int | None:
    """Tokens to which so many sessions may grow in vLLM's blocks; None where blocks don't tell it simply."""
    per_engine = -(-sequences // plan.setup.data_parallel)
    if not plan.one_group or plan.setup.draft_tokens or per_engine < 1:
        return None
    blocks = max(plan.num_gpu_blocks - 1, 0) // per_engine
    return min(blocks * plan.block_size * plan.setup.context_parallel, plan.setup.max_model_len) or None


def tensor_parallel_sum(plan: Plan) -> str:
    """The memory of an engine over several GPUs, added up."""
    memory, gpus = plan.setup.memory, plan.setup.gpus_per_engine
    if isinstance(memory, int):
        return ""
    parts = [memory.gpu * memory.utilization, memory.weights / gpus, memory.overhead]
    gib = " − ".join(plain(part / 1024**3) for part in parts)
    total = Fraction(plan.pool_bytes) * gpus
    each = Fraction(plan.bytes_per_sequence) * gpus
    return f"{gpus} × ({gib}) GiB = {binary(total)}; / {binary(each)} = {plan.max_sequences:,} sessions"


def _bytes(size: int) -> str:
    shown = binary(size)
    return f"{size:,} bytes" if shown.endswith(" B") else f"{size:,} bytes = {shown}"
