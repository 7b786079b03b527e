"""The answer for people: the ceiling first, then the sums, the options, and what to type.

Whoever reads it aloud should be understood: every abbreviation is explained, at the end or where it stands.
Options are set apart by what they are paid with. Quality and money are never put in one list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from kvgate.planner import formulas
from kvgate.planner.glossary import words_in
from kvgate.planner.measured import at_lengths, cuts
from kvgate.planner.recommend import policy_file, vllm_command
from kvgate.planner.sizes import binary, in_unit
from kvgate_policies.capacity_mitigations import Risk, Trade
from kvgate_policies.capacity_options import Option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kvgate.planner.answer import Answer
    from kvgate.planner.formulas import Line

WIDTH_WITHOUT_TERMINAL = 120
LABEL_WIDTH = 30
INDENT = (0, 0, 0, 2)


def print_report(answer: Answer, file: TextIO) -> None:
    width = None if file.isatty() else WIDTH_WITHOUT_TERMINAL
    console = Console(file=file, highlight=False, width=width, markup=False, emoji=False, record=True)
    _headline(console, answer)
    _sums(console, answer)
    _units(console, answer)
    _backend(console, answer)
    _traffic(console, answer)
    _options(console, answer)
    _target(console, answer)
    _recommendation(console, answer)
    _words(console)


def _headline(console: Console, answer: Answer) -> None:
    plan = answer.plan
    console.print(
        f"How many sessions of {plan.setup.max_model_len:,} tokens fit at once? "
        f"{plan.max_sequences:,} by the memory, {plan.max_sequences_engine:,} in vLLM's blocks.",
        style="bold",
    )
    if not plan.starts:
        console.print(
            "vLLM would not start like this: not one session of that length fits. Take a shorter "
            "--max-model-len, or more memory.",
            style="red",
        )


def _sums(console: Console, answer: Answer) -> None:
    plan = answer.plan
    _heading(console, "The model")
    _lines(console, formulas.of_model(plan))
    gpus = plan.setup.gpus
    _heading(console, "The memory" + (f", of each of {gpus} GPUs" if gpus > 1 else " of the GPU"))
    _lines(console, [formulas.of_pool(plan, answer.understood.sizes)])
    _heading(console, "The ceiling")
    _lines(console, formulas.of_ceiling(plan))
    for sentence in (*_why_two(answer), *plan.setup.shape.notes):
        console.print(f"  {sentence}")
    if answer.understood.assumed:
        _heading(console, "Not given, so taken")
        for sentence in answer.understood.assumed:
            console.print(f"  {sentence}")


def _why_two(answer: Answer) -> Iterator[str]:
    """Why the two ceilings differ, or how they would."""
    plan = answer.plan
    if plan.max_sequences > plan.max_sequences_engine:
        yield (
            "The two differ because vLLM deals in whole blocks and one of them, the null block, never holds "
            "anything. What runs is the second."
        )
        longest = formulas.longest_for(plan, plan.max_sequences)
        if longest is not None:
            yield f"All {plan.max_sequences:,} fit while each stays within {longest:,} tokens."


def _units(console: Console, answer: Answer) -> None:
    other, sizes = answer.other_reading, answer.understood.sizes
    others = answer.understood.other_sizes()
    if other is None or sizes is None or others is None:
        return
    pairs = ((sizes.gpu, others.gpu), (sizes.weights, others.weights), (sizes.overhead, others.overhead))
    changed = ", ".join(str(there) for here, there in pairs if here != there)
    _heading(console, "Units")
    console.print(
        f"  Sizes were taken as written. Had the same numbers been {changed}, then "
        f"{in_unit(other.pool_bytes, 'GiB')} would be left: {other.max_sequences:,} sessions by the memory, "
        f"{other.max_sequences_engine:,} in vLLM's blocks. Cards are sold in GB and mostly have about as many GiB; "
        "nvidia-smi tells how many, in MiB. Files and disks are measured in GB."
    )


def _backend(console: Console, answer: Answer) -> None:
    reported, off = answer.reported, answer.blocks_off
    if reported is None or reported.num_gpu_blocks is None:
        return
    _heading(console, "The running server")
    if off is None:
        console.print(
            f"  {reported.url} reports {reported.num_gpu_blocks:,} blocks, and the memory was worked out from them. "
            "Give --gpu-memory and --weights to compare them with the sum."
        )
        return
    console.print(
        f"  {reported.url} reports {reported.num_gpu_blocks:,} blocks; planned are {answer.plan.num_gpu_blocks:,}."
    )
    if off:
        size = binary(abs(off) * answer.plan.bytes_per_block)
        console.print(
            f"  {abs(off):,} {'fewer' if off > 0 else 'more'} than planned, {size} of each GPU: its weights and "
            f"overhead take that much {'more' if off > 0 else 'less'} than was given here. Its number is the true one."
        )
    else:
        console.print("  They agree exactly.")


def _traffic(console: Console, answer: Answer) -> None:
    """What the measured lengths make of the ceiling, and whom a shorter window would cut."""
    traffic = answer.traffic
    if traffic is None:
        return
    _heading(console, f"Your traffic: {traffic.whole:,} requests of {traffic.source}")
    table = Table(box=None, pad_edge=True, padding=(0, 1))
    table.add_column("  sessions of", min_width=LABEL_WIDTH)
    for name in ("tokens", "fit at once", "of the whole length"):
        table.add_column(name, justify="right")
    for row in at_lengths(answer):
        times = f"{row.sequences / row.worst:.1f}×" if row.worst else "–"
        table.add_row(f"  {row.name}", f"{row.tokens:,}", f"{row.sequences:,}", times)
    console.print(table)
    console.print(
        "  That many of average length fit only if no longer ones come at the same time. kvgate reserves for each "
        "request what it may take, so many short ones run together, or few long ones, and nobody bets on the average."
    )
    for cut in cuts(answer):
        console.print(f"  {cut.option}: {_cut(cut.share, exact=traffic.total.exact)}")


def _cut(share: float, *, exact: bool) -> str:
    if share == 0:
        return "would cut none of these requests"
    return f"would cut {'' if exact else 'at most '}{share:.1%} of these requests"


PAID_WITH: tuple[tuple[str, Callable[[set[Trade]], bool]], ...] = (
    ("Costs nothing", lambda trades: trades == {Trade.NOTHING}),
    (
        "No more GPUs: paid for with answers, with the length of requests, or with the safety margin",
        lambda trades: Trade.MONEY not in trades and trades != {Trade.NOTHING},
    ),
    ("More GPUs: paid for with money, answers stay as they are", lambda trades: trades == {Trade.MONEY}),
    ("Both", lambda trades: Trade.MONEY in trades and len(trades) > 1),
)


def _options(console: Console, answer: Answer) -> None:
    _heading(console, "What makes it more, each with what it is paid for")
    shown = [option for option in answer.options if _worth_showing(option)]
    for title, belongs in PAID_WITH:
        mine = [option for option in shown if belongs(set(option.trades))]
        if mine:
            console.print(f"\n  {title}")
            console.print(Padding(_table(mine), INDENT))
    _preconditions(console, answer)
    _corrections(console, answer)
    missing = [option for option in answer.singles if option.plan is None]
    if missing:
        console.print("\n  Not to be had here")
        for option in missing:
            console.print(f"    {option.name}: {option.unavailable}")


def _worth_showing(option: Option) -> bool:
    """All single ones; of the combinations those with the next step of tensor parallelism and no high risk.

    The others are in the JSON, and under the target when they reach it.
    """
    if option.parts == 1:
        return True
    doubled = (
        option.plan is not None and "copies" not in option.name and option.cost.startswith(("2 ×", "no"))
    )
    return doubled and option.risk < Risk.HIGH


def _table(options: Iterable[Option]) -> Table:
    table = Table(box=None, pad_edge=True, padding=(0, 1))
    table.add_column("option", overflow="fold")
    table.add_column("by memory", justify="right")
    table.add_column("in blocks", justify="right")
    table.add_column("times", justify="right")
    table.add_column("cost", overflow="fold")
    table.add_column("risk", overflow="fold")
    for option in options:
        engine = option.plan.max_sequences_engine if option.plan is not None else 0
        risk = option.risk.name.lower() + (f": {option.why_risky}" if option.why_risky else "")
        table.add_row(
            option.name,
            f"{option.max_sequences:,}",
            f"{engine:,}",
            f"{option.factor:.1f}×",
            option.cost,
            risk,
        )
    return table


def _preconditions(console: Console, answer: Answer) -> None:
    """When each may be taken; a combination needs what its parts need."""
    names: dict[str, list[str]] = {}
    for option in answer.singles:
        if option.plan is not None:
            names.setdefault(option.precondition, []).append(option.name)
    console.print("\n  Only if")
    for precondition, having in names.items():
        console.print(f"    {', '.join(having)}: {precondition}")


def _corrections(console: Console, answer: Answer) -> None:
    """What is commonly said and the sum doesn't bear out."""
    for option in answer.singles:
        if not option.overstated or option.plan is None or option.claimed is None:
            continue
        sum_ = formulas.tensor_parallel_sum(option.plan) if option.trades == (Trade.MONEY,) else ""
        console.print(
            f"\n  {option.name} is often said to give {option.claimed:g}×. It gives {option.factor:.1f}×"
            + (
                f": {sum_}. Every GPU keeps its own overhead, and halving the weights helps only once."
                if sum_
                else "."
            )
        )


def _target(console: Console, answer: Answer) -> None:
    if answer.target is None:
        return
    _heading(console, f"What gets you to {answer.target:g}×, by the number of GPUs")
    if not answer.ways:
        best = max((option for option in answer.options), key=lambda option: option.factor, default=None)
        most = f" The most is {best.factor:.1f}×, with {best.name}." if best is not None else ""
        console.print(f"  Nothing here does.{most}")
        return
    console.print("  Each line is the least risky way with so many GPUs. Which to take is not arithmetic.")
    for option in answer.ways:
        gpus = f"{option.gpus} GPU{'s' if option.gpus > 1 else ''}"
        console.print(f"\n  {gpus}: {option.name}", style="bold")
        console.print(f"    {option.max_sequences:,} sessions by the memory, {option.factor:.1f}×")
        console.print(f"    paid for with {', '.join(option.trades)}; {option.cost}")
        console.print(
            f"    risk {option.risk.name.lower()}" + (f": {option.why_risky}" if option.why_risky else "")
        )
        console.print(f"    only if: {option.precondition}")


def _recommendation(console: Console, answer: Answer) -> None:
    question, plan = answer.understood.question, answer.recommended
    which = f"for {answer.ways[0].name}" if answer.ways else "for the setup as it is"
    _heading(console, f"To type, {which}")
    console.print(f"  {vllm_command(plan, question)}", soft_wrap=True)
    console.print("\n  and in front of it kvgate with this policy (kvgate serve --policy FILE):\n")
    for line in policy_file(plan, question).splitlines():
        console.print(f"    {line}")
    cap = max(plan.max_sequences_engine // plan.setup.data_parallel, 1)
    console.print(
        "\n  kvgate counts blocks, so it admits as many sessions as fit, more of the short ones. Without it, "
        f"--max-num-seqs {cap} is the safe number for sessions of the whole length."
    )


def _words(console: Console) -> None:
    """The words that were used, explained."""
    used = console.export_text(clear=False)
    _heading(console, "Words")
    for word, meaning in words_in(used):
        console.print(f"  {word}: {meaning}")


def _heading(console: Console, text: str) -> None:
    console.print(f"\n{text}", style="bold")


def _lines(console: Console, lines: Iterable[Line]) -> None:
    for line in lines:
        console.print(f"  {line.what:<{LABEL_WIDTH}}{line.sum}", soft_wrap=True)
