"""Values as people write them in a policy file: `30%`, `30s`, `200k tokens`, `off`. Pure."""

from __future__ import annotations

from kvgate.config.crosschecks import percent

SHARES = frozenset({"guarantee", "limit", "risk", "trace_sample", "watermark"})


def shown(name: str, value: object) -> str:
    """The value of a setting or of a field of `TenantPolicy` or `TenantRules`."""
    match value:
        case None | ():
            text = "none"
        case bool():
            text = "on" if value else "off"
        case float() if name in SHARES:
            text = percent(value)
        case float() if name.endswith(("_s", "_s_max")):
            text = f"{value:g}s"
        case float():
            text = f"{value:g}"
        case tuple():
            text = ", ".join(map(str, value))
        case _:
            text = str(value)
    return text
