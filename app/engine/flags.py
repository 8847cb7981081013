"""Which of vLLM's flags mean what here: every flag of `vllm serve` stands in exactly one list.

Flags of the engine itself (`AsyncEngineArgs`) pass unchanged, but for those in `REFUSED`. The lists
below sort the flags of vLLM's HTTP server; a test walks vLLM's own parser and fails on a flag that
stands in none of them or in two.
"""

from __future__ import annotations

# Read by the gateway: addresses, TLS, browsers, the one key, logging.
HONOURED = frozenset(
    {
        "model_tag",
        "config",
        "host",
        "port",
        "ssl_keyfile",
        "ssl_certfile",
        "ssl_ca_certs",
        "ssl_cert_reqs",
        "ssl_ciphers",
        "enable_ssl_refresh",
        "root_path",
        "allow_credentials",
        "allowed_origins",
        "allowed_methods",
        "allowed_headers",
        "api_key",
        "uvicorn_log_level",
        "h11_max_header_count",
        "h11_max_incomplete_event_size",
    }
)

# Handed to vLLM's own API objects unchanged.
PASSED = frozenset(
    {
        "anthropic_disabled_thinking_effort",
        "chat_template",
        "chat_template_content_format",
        "cohere_format",
        "cohere_is_reasoning_model",
        "default_chat_template_kwargs",
        "enable_auto_tool_choice",
        "enable_flash_late_interaction",
        "enable_force_include_usage",
        "enable_log_deltas",
        "enable_log_outputs",
        "enable_per_request_metrics",
        "enable_prompt_tokens_details",
        "exclude_tools_when_tool_choice_none",
        "fingerprint_mode",
        "fingerprint_value",
        "log_error_stack",
        "lora_modules",
        "max_log_len",
        "response_role",
        "return_tokens_as_token_ids",
        "tool_call_parser",
        "tool_parser_plugin",
        "tool_server",
        "tool_strict_level",
        "trust_request_chat_template",
        "trust_request_mm_kwargs",
    }
)

# Accepted and without effect, since what they turn on or off is not here or always is.
WITHOUT_EFFECT = frozenset(
    {
        "data_parallel_supervisor_port",
        "disable_access_log_for_endpoints",
        "disable_fastapi_docs",
        "disable_uvicorn_access_log",
        "dp_supervisor_probe_failure_threshold",
        "dp_supervisor_probe_interval_s",
        "dp_supervisor_probe_timeout_s",
        "enable_request_id_headers",
        "enable_server_load_tracking",
    }
)

# Refused by name, each with what to do instead.
REFUSED = {
    "api_server_count": "one gateway process owns the engine; run several replicas instead",
    "headless": "start a model's other nodes with vLLM's own `vllm serve --headless`",
    "uds": "use --host and --port, or a proxy that listens on the socket",
    "grpc": "use HTTP and WebSocket, or run vLLM's own gRPC server beside",
    "grpc_port": "use HTTP and WebSocket, or run vLLM's own gRPC server beside",
    "middleware": "put a proxy in front for what a middleware would do",
    "enable_offline_docs": "the API is described in the README",
    "enable_scale_out": "those endpoints would pass the tenants' queue by; use /v1",
    "tokens_only": "use /v1/completions with token ids",
    "enable_tokenizer_info_endpoint": "use /tokenize and /detokenize",
    "sse_keep_alive_interval": "the gateway sends its own keep-alive comments",
    "data_parallel_external_lb": "use --data-parallel-size alone: the gateway balances the ranks",
    "data_parallel_hybrid_lb": "use --data-parallel-size alone: the gateway balances the ranks",
    "data_parallel_multi_port_external_lb": "use --data-parallel-size alone, on one port",
}

# Values with which a refused flag asks for nothing.
HARMLESS: dict[str, tuple[object, ...]] = {
    "api_server_count": (None, 1),
    "sse_keep_alive_interval": (0,),
    "middleware": ([],),
}


def refusal(values: dict[str, object]) -> str | None:
    """The sentence for the first refused flag that is really asked for, or None.

    `values` are the parsed flags by their names with underscores.
    """
    for name, instead in REFUSED.items():
        value = values.get(name)
        if value not in HARMLESS.get(name, (None, False, "")):
            return f"--{name.replace('_', '-')} is not offered: {instead}"
    return None
