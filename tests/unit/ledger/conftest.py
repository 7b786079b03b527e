from __future__ import annotations

import pytest

for helper in ("conformance", "pool", "machine"):
    pytest.register_assert_rewrite(f"unit.ledger.{helper}")
