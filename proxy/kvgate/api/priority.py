"""The priority in a body, for the endpoints where vLLM reads it there alone.

Elsewhere a header says the same, and the body stays as it came (`kvgate.admission.forwarding`).
"""

from __future__ import annotations

from kvgate.admission.forwarding import priority_of
from kvgate.api.rewrite import with_priority
from kvgate_policies.types import Endpoint, TenantPolicy

BODY_ALONE = frozenset({Endpoint.CHAT_BATCH, Endpoint.GENERATE})
"""As of vLLM 0.32. Audio and beam search read none at all."""


def body_with_priority(body: bytes, endpoint: Endpoint, tenant: TenantPolicy) -> bytes:
    """The body as an engine gets it where kvgate decides on priorities; the same one wherever it need not change.

    Raises ValueError for one that no priority can be written into.
    """
    if endpoint not in BODY_ALONE or tenant.mode != "enforce":
        return body
    return with_priority(body, priority_of(tenant))
