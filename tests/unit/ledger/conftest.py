from __future__ import annotations

import pytest

for helper in ("conformance", "conformance_tenants", "pool", "machine", "saturated"):
    pytest.register_assert_rewrite(f"unit.ledger.{helper}")
