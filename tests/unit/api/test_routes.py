"""The table is the only way in: every path of vLLM that is not in it is out of reach."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.api.routes import (
    TABLE,
    Dialect,
    MethodNotAllowed,
    NotFound,
    Route,
    Treatment,
    match,
)
from kvgate_policies.types import Endpoint

EXAMPLE_ID = "resp_b75434e52a76cdc3"

VLLM_PATHS_OUT_OF_REACH = """
/health /load /version /metrics /kv_event_sources /ping /invocations /generative_scoring /v1/systemone
/scale_elastic_ep /is_scaling_elastic_ep /docs /redoc /openapi.json /docs/oauth2-redirect
/v1/chat/completions/derender /v1/completions/derender /inference/v1/abort_requests
/tokenizer_info /start_profile /stop_profile /v1/load_lora_adapter /v1/unload_lora_adapter
/cohere/v2/chat /cohere/v2/chat/render /v2/embed /fault_tolerance /fault_tolerance/status /abort_requests
/server_info /sleep /wake_up /is_sleeping /pause /resume /is_paused
/reset_prefix_cache /reset_mm_cache /reset_encoder_cache /release_kv_cache_memory /collective_rpc
/init_weight_transfer_engine /shutdown_weight_transfer_engine /start_weight_update /start_draft_weight_update
/update_weights /finish_weight_update /update_weight_version /weight_checker /weight_info /get_world_size
/v1/realtime /v1/models/tiny /ready /readyz
"""

KVGATES_OWN = ["/livez", "/readyz", "/metrics", "/admin", "/admin/pools", "/console", "/", ""]

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "PRI"]


def example(route: Route) -> str:
    return route.path.replace("{id}", EXAMPLE_ID)


@pytest.mark.parametrize("route", TABLE, ids=lambda route: f"{route.method} {route.path}")
def test_every_row_is_found_by_its_own_path_and_method(route: Route):
    assert match(route.method, example(route)) is route


@pytest.mark.parametrize("route", TABLE, ids=lambda route: f"{route.method} {route.path}")
def test_other_methods_are_refused_with_the_right_ones(route: Route):
    allowed = {other.method for other in TABLE if other.path == route.path}
    for method in METHODS:
        if method not in allowed:
            assert match(method, example(route)) == MethodNotAllowed(tuple(sorted(allowed)))


def test_what_generates_is_admitted_and_nothing_admitted_lacks_an_endpoint():
    admitted = {route.path: route.endpoint for route in TABLE if route.treatment is Treatment.ADMITTED}
    assert None not in admitted.values()
    assert set(admitted.values()) == set(Endpoint)
    assert all(route.method == "POST" for route in TABLE if route.treatment is Treatment.ADMITTED)
    assert all(route.endpoint is None for route in TABLE if route.treatment is not Treatment.ADMITTED)


def test_dialects():
    dialects = {route.path: route.dialect for route in TABLE}
    assert dialects["/v1/messages"] is Dialect.ANTHROPIC
    assert dialects["/v1/responses"] is Dialect.RESPONSES
    assert dialects["/v1/chat/completions"] is Dialect.OPENAI


@pytest.mark.parametrize("path", [*VLLM_PATHS_OUT_OF_REACH.split(), *KVGATES_OWN])
def test_the_rest_is_not_found(path: str):
    for method in METHODS:
        assert match(method, path) == NotFound()


def disguises(path: str) -> list[str]:
    return [
        path + "/",
        "/" + path,
        path.replace("/", "//"),
        path.upper(),
        f"{path[:-1]}%{ord(path[-1]):x}",
        "/." + path,
        "/x/.." + path,
        path + "/..",
        path + "/.",
        path + ";x",
        path + "%00",
        path + "%2f",
        path + "\n",
        path + " ",
        path + "#",
        path + "?",
        path.replace("/", "\\"),
        path[1:],
    ]


@pytest.mark.parametrize("route", TABLE, ids=lambda route: f"{route.method} {route.path}")
def test_disguised_paths_are_not_found(route: Route):
    for path in disguises(example(route)):
        assert match(route.method, path) == NotFound(), path


@pytest.mark.parametrize(
    "response_id",
    [
        *("", ".", "..", "resp_", "resp_/x", "resp_%2e%2e", "resp_a/../../sleep", "resp_a%2fb", "resp_a b"),
        *("resp_.x", "resp_" + "a" * 300, "resp_a\n", "resp_é", "RESP_a", "a", "resp_a?b", "{id}"),
    ],
)
def test_unsafe_response_ids_are_not_found(response_id: str):
    assert match("GET", f"/v1/responses/{response_id}") == NotFound()
    assert match("POST", f"/v1/responses/{response_id}/cancel") == NotFound()


@pytest.mark.parametrize("response_id", [EXAMPLE_ID, "resp_my-request.1:2", "resp_" + "a" * 200])
def test_vllms_response_ids_are_found(response_id: str):
    assert isinstance(match("GET", f"/v1/responses/{response_id}"), Route)


@given(st.text(max_size=40), st.sampled_from(TABLE))
def test_nothing_but_the_table_is_found(text: str, route: Route):
    for path in (text, "/" + text, route.path + text, route.path + "/" + text):
        found = match(route.method, path)
        assert not isinstance(found, Route) or path == example(found) or "/v1/responses/resp_" in path
