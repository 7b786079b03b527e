"""The reference of the policy file and its schema are made from the models, and are up to date.

They are written by

    python tests/unit/config/test_reference.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from kvgate.config import Settings
from kvgate.config.effects import LIMIT_KEYS, POOL_KEYS
from kvgate.config.policy import read_policy
from kvgate.config.schema import keys_of_the_format, policy_schema
from kvgate.config.shown import shown
from kvgate_policies.types import TenantPolicy

ROOT = Path(__file__).parents[3]
SCHEMA = ROOT / "policies/policy.schema.json"
README = ROOT / "policies/README.md"
AGAIN = "run: python tests/unit/config/test_reference.py"
TABLE = re.compile(r"(<!-- keys: begin [^\n]*-->\n)(.*?)(<!-- keys: end -->)", re.DOTALL)

OTHER_DEFAULTS = {
    "mode": "enforce", "unknown_tenant": "reject", "identity.from": "api_key", "bypass": "8",
    "ledger.url": "memory://", "ledger.lease": "5s", "ledger.on_failure": "local",
    "identity.algorithms": "[RS256, ES256]",
}  # fmt: skip


def defaults() -> dict[str, str]:
    """What holds where a key is not written, by its path."""
    settings, tenant = Settings(backends=("http://a",)), TenantPolicy()
    found = dict(OTHER_DEFAULTS)
    for name, key in POOL_KEYS.items() - {("backends", "backends")}:
        found[f"pools.NAME.{key}"] = shown(name, getattr(settings, name))
    for name, path in LIMIT_KEYS.items() - {("mode", ("mode",))}:
        value = getattr(tenant if hasattr(tenant, name) else tenant.rules, name)
        found["defaults." + ".".join(path).removesuffix("_")] = shown(name, value)
    found["defaults.limit"] = shown("limit", tenant.rules.limit)
    return {path: text for path, text in found.items() if text != "none"} | {
        path: "none" for path, text in found.items() if path.startswith("defaults.") and text == "none"
    }


def keys_table() -> str:
    known = defaults()
    rows = ["| Key | Unless written | Meaning |", "|---|---|---|"]
    for key in keys_of_the_format():
        default = f"`{known[key.path]}`" if key.path in known else "–"
        rows.append(f"| `{key.path}` | {default} | {key.meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"


def schema_text() -> str:
    return json.dumps(policy_schema(), indent=2, ensure_ascii=False) + "\n"


def write() -> None:
    SCHEMA.write_text(schema_text())
    README.write_text(TABLE.sub(lambda found: found[1] + keys_table() + found[3], README.read_text()))


def test_the_schema_is_that_of_the_models() -> None:
    assert SCHEMA.read_text() == schema_text(), AGAIN


def test_the_table_of_keys_is_that_of_the_models() -> None:
    found = TABLE.search(README.read_text())
    assert found
    assert found[2] == keys_table(), AGAIN


def test_every_key_has_a_meaning() -> None:
    keys = list(keys_of_the_format())
    assert len(keys) == len({key.path for key in keys}) > 50
    assert [key.path for key in keys if not key.meaning] == []


def test_the_defaults_in_the_table_are_those_in_force(tmp_path: Path) -> None:
    """Written out, they change nothing."""
    known = defaults()
    limits = {path: text for path, text in known.items() if path.startswith("defaults.")}
    file = tmp_path / "policy.yaml"
    pool = "version: 1\npools: {m: {backends: [http://a]}}\n"
    file.write_text(pool)
    plain = read_policy(file).pools

    def nested(path: str, text: str) -> str:
        for name in reversed(path.split(".")):
            text = f"{{{name}: {text}}}"
        return text

    from kvgate.config import load  # noqa: PLC0415

    before = load(file, {}, {})
    assert before.pools == ()
    assert len(plain) == 1
    for path, text in limits.items():
        file.write_text(f"{pool}defaults: {nested(path.removeprefix('defaults.'), text)}\n")
        assert load(file, {}, {}).tenant == before.tenant, path
    for path, text in known.items():
        if path in {"mode", "bypass"} or path.startswith("ledger."):
            name, _, inside = path.partition(".")
            value = nested(inside, f"'{text}'") if inside else text
            file.write_text(f"{pool}{name}: {value}\n")
            after = load(file, {}, {})
            assert after.model_copy(update={"book": before.book}) == before, path


if __name__ == "__main__":
    write()
