"""The server's own flags, found among vLLM's before vLLM is imported."""

from __future__ import annotations

import pytest

from app.flags import FlagError, ServerFlags, read_server_flags


def test_the_servers_flags_are_found_among_the_engines():
    flags = read_server_flags(
        [
            *("Qwen/Qwen3-0.6B", "--host=::1", "-tp", "2", "--port", "8123"),
            *("--hf-overrides", '{"port": 1}', "--root-path", "/llm", "--enforce-eager"),
            *("--ssl_keyfile", "k.pem", "--ssl-certfile=c.pem", "--enable-ssl-refresh"),
        ]
    )
    assert flags == ServerFlags(
        host="::1",
        port=8123,
        root_path="/llm",
        ssl_keyfile="k.pem",
        ssl_certfile="c.pem",
        enable_ssl_refresh=True,
    )


def test_without_any_everything_is_left_to_the_settings():
    assert read_server_flags(["Qwen/Qwen3-0.6B", "--max-num-seqs", "4"]) == ServerFlags()


def test_a_longer_name_is_not_an_abbreviation():
    """vLLM has flags that begin like ours."""
    assert read_server_flags(["--host-cache=1", "--por", "1"]).port is None


def test_a_config_file_counts_and_the_command_line_wins(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "port: 8001\nhost: 0.0.0.0\nenable_ssl_refresh: true\nmax-num-seqs: 4\nlora-modules: [a]\n"
    )
    flags = read_server_flags(["--config", str(file), "--host", "127.0.0.1"])
    assert (flags.host, flags.port, flags.enable_ssl_refresh) == ("127.0.0.1", 8001, True)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        pytest.param(["--port", "http"], "--port", id="no number"),
        pytest.param(["--port", "70000"], "between 1 and 65535", id="no port"),
        pytest.param(["--uvicorn-log-level", "loud"], "loud", id="no level"),
        pytest.param(["--ssl-keyfile", "k.pem"], "belong together", id="half a pair"),
        pytest.param(["--config", "none.yaml"], "none.yaml", id="no file"),
        pytest.param(["--host"], "--host", id="no value"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(argv, says):
    with pytest.raises(FlagError, match=says):
        read_server_flags(argv)


@pytest.mark.parametrize("content", ["- a\n- b\n", "port: [", "a string"])
def test_a_config_file_that_is_none_is_named(tmp_path, content):
    file = tmp_path / "config.yaml"
    file.write_text(content)
    with pytest.raises(FlagError, match=r"config\.yaml"):
        read_server_flags(["--config", str(file)])
