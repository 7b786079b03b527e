"""The dashboards as code: Python in, the JSON of `grafana/dashboards` out.

Promises: what is committed there is exactly what `python -m kvgate_dashboards` writes, and every metric in a query is
a value of `kvgate.telemetry.catalogue`, so a panel cannot ask for what is not exported. How a metric is put together
from several processes (add up, or take the largest) is read from the catalogue as well, and decided nowhere else.
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # The SDK prefers a format that needs Grafana 12; the classic one is read by all versions. It says so at import.
    warnings.simplefilter("ignore", DeprecationWarning)
    import grafana_foundation_sdk.builders.dashboard
    import grafana_foundation_sdk.models.dashboardv2beta1  # noqa: F401
    from grafana_foundation_sdk.models.dashboard import Dashboard as ClassicDashboard

__all__ = ["ClassicDashboard"]
