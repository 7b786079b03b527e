"""Each setting of the command line and the environment: its name, where it goes, its reader.

One table, so that the command line, the environment and the policy file can't disagree about a setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvgate.config import choices, tenant_choices, units

if TYPE_CHECKING:
    from collections.abc import Callable

ENV_PREFIX = "KVGATE_"


@dataclass(frozen=True, slots=True)
class Option:
    key: str
    """The name in `cli` mappings."""
    target: str
    """The path in `Settings`."""
    read: Callable[[object], object]
    """Returns the value, or raises ValueError with what is allowed."""
    flag: str = ""
    """On the command line. Empty for what only the environment sets: secrets, which a process list would
    show, and bounds that hardly anyone changes."""
    secret: bool = False
    standard_env: str = ""
    """A variable that other software reads too; ours wins over it."""

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.key.upper()


OPTIONS: tuple[Option, ...] = (
    Option("backends", "backends", choices.backends, "--backend"),
    Option("pool", "pool", choices.name, "--pool"),
    Option("ledger", "ledger_url", choices.ledger_url, "--ledger"),
    Option("ledger_on_failure", "ledger_on_failure", choices.on_failure, "--ledger-on-failure"),
    Option("ledger_lease", "ledger_lease_s", units.duration_s, "--ledger-lease"),
    Option("host", "host", choices.name, "--host"),
    Option("port", "port", choices.port, "--port"),
    Option("admin_host", "admin_host", choices.name, "--admin-host"),
    Option("admin_port", "admin_port", choices.port, "--admin-port"),
    Option("workers", "workers", choices.count_1, "--workers"),
    Option("max_tokens_default", "tenant.max_tokens_default", choices.count_1, "--max-tokens-default"),
    Option("queue_depth", "tenant.queue_depth_max", choices.count_1, "--queue-depth"),
    Option("queue_wait", "tenant.queue_wait_s_max", units.duration_s, "--queue-wait"),
    Option("max_num_seqs", "max_num_seqs", choices.count_1, "--max-num-seqs"),
    Option("reservation", "reservation", choices.reservation, "--reservation"),
    Option("risk", "risk", choices.risk, "--risk"),
    Option("prefix_sharing", "prefix_sharing", tenant_choices.switch, "--prefix-sharing"),
    Option("prompt_tokens", "prompt_tokens", choices.prompt_tokens, "--prompt-tokens"),
    Option("num_gpu_blocks", "num_gpu_blocks", choices.engine_blocks, "--num-gpu-blocks"),
    Option("block_size", "block_size", choices.count_1, "--block-size"),
    Option("max_model_len", "max_model_len", choices.count_1, "--max-model-len"),
    Option("model_config", "kv_model", choices.model_config, "--model-config"),
    Option("log_level", "log_level", choices.log_level, "--log-level"),
    Option("log_format", "log_format", choices.log_format, "--log-format"),
    Option("request_log", "request_log", choices.text, "--request-log"),
    Option("state_dir", "state_dir", choices.text, "--state-dir"),
    Option(
        "otlp_endpoint",
        "otlp_endpoint",
        choices.collector_url,
        "--otlp-endpoint",
        standard_env="OTEL_EXPORTER_OTLP_ENDPOINT",
    ),
    Option("trace_sample", "trace_sample", units.share_whole, "--trace-sample"),
    Option("backend_api_key", "backend_api_key", choices.secret, secret=True),
    Option("admin_token", "admin_token", choices.secret, secret=True),
    Option("ledger_heartbeat", "ledger_heartbeat_s", units.duration_s),
    Option("ledger_orphan_hold", "ledger_orphan_hold_s", units.duration_s),
    Option("max_tokens_cap", "tenant.max_tokens_cap", choices.count_1),
    Option("overload_status", "tenant.overload_status", choices.overload_status),
    Option("prefix_affinity", "prefix_affinity", tenant_choices.switch),
    Option("priority", "priority", tenant_choices.switch),
    Option("speculative_tokens", "speculative_tokens", units.count),
    Option("watermark", "watermark", units.share),
    Option("prefill_tokens_max", "prefill_tokens_max", choices.count_1),
    Option("bypass_max", "bypass_max", units.count),
    Option("resend_max", "resend_max", units.count),
    Option("probe_interval", "probe_interval_s", units.duration_s),
    Option("probe_timeout", "probe_timeout_s", units.duration_s),
    Option("stall_after", "stall_after_s", units.duration_s),
    Option("busy_hold", "busy_hold_s", units.duration_s),
    Option("body_bytes_max", "body_bytes_max", choices.count_1),
    Option("answer_bytes_inspected_max", "answer_bytes_inspected_max", choices.count_1),
    Option("request_log_bytes_max", "request_log_bytes_max", units.count),
    Option("request_log_files_max", "request_log_files_max", units.count),
    Option("connections_max", "connections_max", choices.count_1),
    Option("expose_backend", "expose_backend", choices.boolean),
    Option("timeout_connect", "timeouts.connect_s", units.duration_s),
    Option("timeout_first_byte", "timeouts.first_byte_s", units.duration_s),
    Option("timeout_idle", "timeouts.idle_s", units.duration_s),
    Option("timeout_overall", "timeouts.overall_s", units.duration_s),
    Option("timeout_body", "timeouts.body_s", units.duration_s),
    Option("timeout_drain", "timeouts.drain_s", units.duration_s),
    Option("timeout_draining_hold", "timeouts.draining_hold_s", units.duration_s),
)
