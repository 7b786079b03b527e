"""A request that could grow beyond every engine, or beyond what its tenant may hold, and most likely will not.

With forecasts nothing need be written into a request whose client set no limit. Its peak is the rest of the window
then: of several sequences together more than an engine has, or more than a tenant's limit. That is no reason to refuse
it. It is priced as no more than it may have, what is expected of it as well as its peak: then it reserves a whole
engine, or all that is its tenant's. Should it come to more, vLLM preempts within it, for each of its sequences
by itself fits the engine. A client that asks for more than an engine has, by a limit of its own, is told so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvgate_policies.kv_cost import price

if TYPE_CHECKING:
    from kvgate.admission.pricing import Priced
    from kvgate_policies.forecast_request import Outlook
    from kvgate_policies.types import EngineShape, KVCost, LedgerView, TenantPolicy


def within_reach(priced: Priced, tenant: TenantPolicy, view: LedgerView) -> Priced | None:
    """Priced by the largest engine of each shape, and by what its tenant may hold; None where that changes nothing, or
    would promise what can't be.
    """
    outlook = priced.outlook
    if outlook is None or tenant.reservation == "guaranteed":
        return None
    limit = next((use.blocks_limit for use in view.tenants if use.name == tenant.name), None)
    costs: dict[EngineShape, KVCost] = {}
    for shape, cost in priced.costs.items():
        blocks = max((use.limits.blocks for use in view.engines if use.limits.shape == shape), default=0)
        most = blocks if limit is None else min(blocks, limit)
        asked = 0 if _is_open_ended(outlook, shape) else cost.blocks
        if asked <= blocks and _surely(outlook, shape) <= most:
            expected = None if cost.expected is None else cost.expected.at_most(most)
            costs[shape] = replace(cost, blocks=min(cost.blocks, most), expected=expected)
    return replace(priced, costs=costs) if costs and costs != priced.costs else None


def _is_open_ended(outlook: Outlook, shape: EngineShape) -> bool:
    """Whether its answer may take what is left of the window, which is what no limit means."""
    return outlook.max_tokens + min(outlook.prompts) >= shape.max_model_len


def _surely(outlook: Outlook, shape: EngineShape) -> int:
    """Blocks that it takes at its end, however early that is."""
    output = outlook.max_tokens if outlook.ignore_eos else outlook.sure + 1
    return price(outlook.counted_on(shape), outlook.prompts, output, outlook.n).blocks
