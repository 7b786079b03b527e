"""How many sequences fit, and why: the planner's arithmetic.

For each GPU, with all sizes in bytes and T tokens in a sequence:

    pool               = gpu_memory · utilization − weights / (tp · pp) − overhead
    bytes_per_block    = bytes_per_token · block_size                     one KV group; see capacity_groups for more
    num_gpu_blocks     = floor(pool / bytes_per_block), the least over pipeline stages
    bytes_per_sequence = bytes_per_token · ceil(T / dcp); with several KV groups blocks(T) · bytes_per_block
    max_sequences        = dp · floor(pool / bytes_per_sequence)          the arithmetic on paper
    max_sequences_engine = dp · floor((num_gpu_blocks − 1) / blocks(T))   what vLLM fits

The two differ since vLLM deals in whole blocks and one of them is the null block, which never holds anything.
All is exact: sizes are integers or fractions and rounded down once, at the end. tp, pp, dp, dcp are the numbers
of GPUs for tensor, pipeline, data and decode context parallelism. Source: vLLM 0.32, `get_kv_cache_configs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kvgate_policies.capacity_groups import Group, blocks_bound, blocks_held, blocks_steady, grows_evenly
from kvgate_policies.capacity_layout import lay_out
from kvgate_policies.capacity_setup import Memory, Setup, serving_of


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. Bytes and blocks are those of one GPU, and of the fullest stage where stages differ."""

    setup: Setup
    kv_dtype: str
    block_size: int
    """Tokens; larger than asked for where recurrent states need it."""
    groups: tuple[Group, ...]
    bytes_per_token: int
    """While every layer keeps the token."""
    bytes_per_token_long: int
    """Of a token that has left all windows: the layers that keep every token."""
    bytes_per_block: int
    blocks_per_sequence: int
    bytes_per_sequence: int
    pool_bytes: int
    num_gpu_blocks: int
    """As vLLM counts them, the null block included."""
    max_sequences: int
    max_sequences_engine: int
    concurrency: Fraction
    """What vLLM logs as maximum concurrency: the null block counted in, windows at their admission bound."""

    @property
    def starts(self) -> bool:
        """Whether vLLM would start: it refuses when not one sequence of the whole window fits."""
        return self.max_sequences_engine > 0

    @property
    def one_group(self) -> bool:
        """Whether the memory of a sequence simply grows with its tokens."""
        return grows_evenly(self.groups)

    def blocks(self, tokens: int) -> int:
        """Blocks of a sequence of so many tokens, at its peak."""
        return sum(blocks_held(group, tokens, serving_of(self.setup)) for group in self.groups)

    def steady_blocks(self, tokens: int) -> int:
        """Blocks of a sequence of so many tokens that has read its prompt: windows have shrunk to themselves."""
        return sum(blocks_steady(group, tokens, serving_of(self.setup)) for group in self.groups)

    def sequences(self, tokens: int) -> int:
        """How many sequences of so many tokens vLLM fits at once."""
        return self.setup.data_parallel * ((self.num_gpu_blocks - 1) // self.blocks(tokens))


def make_plan(setup: Setup) -> Plan:
    """Do the sum. Raises CapacityError or ModelShapeError."""
    layout = lay_out(setup)
    serving, copies, tokens = serving_of(setup), setup.data_parallel, setup.max_model_len
    pool = _pool_bytes(setup)
    blocks = pool // layout.block_bytes
    needed = sum(blocks_held(group, tokens, serving) for group in layout.groups)
    sequence = layout.sequence_bytes(tokens, needed, setup.context_parallel)
    return Plan(
        setup=setup,
        kv_dtype=layout.kv_dtype,
        block_size=layout.block_size,
        groups=layout.groups,
        bytes_per_token=layout.token_bytes,
        bytes_per_token_long=layout.token_bytes_long,
        bytes_per_block=layout.block_bytes,
        blocks_per_sequence=needed,
        bytes_per_sequence=sequence,
        pool_bytes=pool,
        num_gpu_blocks=blocks,
        max_sequences=copies * (pool // sequence),
        max_sequences_engine=copies * (max(blocks - 1, 0) // needed),
        concurrency=Fraction(blocks, sum(blocks_bound(group, serving) for group in layout.groups)),
    )


def _pool_bytes(setup: Setup) -> int:
    if isinstance(setup.memory, Memory):
        return setup.memory.pool_bytes(setup.gpus_per_engine)
    return setup.memory
