"""`kvasir router` as a process: its options, its stop, and what it says when it cannot start."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvasir_router.command import app
from kvasir_router.options.router_settings import RouterSettings

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "fleet.yaml"


async def open_stream(router, post):
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    writer.write(post(b'{"model": "m"}'))
    await reader.readuntil(b"data: 1\n\n")
    return reader, writer


async def refused(router) -> None:
    """Wait until nobody can connect any more."""
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", router.port)
            except ConnectionError:
                return
            writer.close()
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_ends_with_0(
    config, write_config, model_entry, stream_until, start_process, post, number
) -> None:
    replica, go_on = await stream_until()
    write_config(config, [model_entry("m", replica)])
    router = await start_process(config)
    reader, writer = await open_stream(router, post)
    router.signal(number)
    await refused(router)
    go_on.set()
    assert (await reader.read()).endswith(b"data: 2\n\n\r\n0\r\n\r\n")
    writer.close()
    code, out, err = await router.ended()
    assert code == 0, err
    records = [json.loads(line) for line in out.splitlines()]
    [request] = [record for record in records if record.get("model") == "m"]
    assert request["status"] == 200
    assert request["bytes"] == 18
    assert [json.loads(line)["event"] for line in err.splitlines()][-1] == "stopped"


async def test_after_a_signal_it_accepts_for_the_pre_stop_delay_and_is_not_ready(
    config, write_config, model_entry, stream_until, start_process, client, post
) -> None:
    replica, go_on = await stream_until()
    go_on.set()
    write_config(config, [model_entry("m", replica)])
    router = await start_process(config, "--pre-stop-delay", "600")
    router.signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        while (await client.get(f"{router.url}/ready")).status_code == 200:
            pass
    assert (await client.get(f"{router.admin_url}/ready")).status_code == 503
    reader, writer = await open_stream(router, post)
    assert (await reader.readuntil(b"data: 2\n\n")).endswith(b"data: 2\n\n")
    writer.close()
    router.signal(signal.SIGTERM)
    await router.ended()


async def test_the_drain_timeout_ends_streams_with_an_error_event(
    config, write_config, model_entry, stream_until, start_process, post
) -> None:
    replica, _ = await stream_until()
    write_config(config, [model_entry("m", replica)])
    router = await start_process(config, "--drain-timeout", "0.3", "--no-access-log")
    reader, writer = await open_stream(router, post)
    router.signal(signal.SIGTERM)
    assert b"router_stopping" in await reader.read()
    writer.close()
    code, out, _ = await router.ended()
    assert (code, out) == (0, b"")


async def test_clients_that_neither_read_nor_close_do_not_keep_it_up(
    config, write_config, model_entry, start_replica, start_process, post
) -> None:
    async def flood(exchange) -> None:
        await exchange.start_events()
        while True:
            await exchange.chunk(b"data: " + b"x" * 65536 + b"\n\n")

    replica = await start_replica(script=flood)
    write_config(config, [model_entry("m", replica)])
    router = await start_process(config, "--drain-timeout", "0.3")
    stuck = [await asyncio.open_connection("127.0.0.1", router.port) for _ in range(3)]
    for _, writer in stuck:
        writer.write(post(b'{"model": "m"}'))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(0.3)
    router.signal(signal.SIGTERM)
    code, _, err = await router.ended()
    assert code == 0, err
    for _, writer in stuck:
        writer.transport.abort()


async def test_a_second_signal_ends_the_drain(
    config, write_config, model_entry, stream_until, start_process, post
) -> None:
    replica, _ = await stream_until()
    write_config(config, [model_entry("m", replica)])
    router = await start_process(config, "--drain-timeout", "600")
    _, writer = await open_stream(router, post)
    router.signal(signal.SIGTERM)
    await refused(router)  # or both signals may be one
    router.signal(signal.SIGTERM)
    await router.ended()
    writer.close()


async def test_a_bad_file_at_the_start(config, start_process) -> None:
    config.write_text("models: [{name: m, oops: 1}]")
    code, _, err = await (await start_process(config, wait=False)).ended()
    assert code == 2
    assert b"models[0].oops" in err
    assert b"Traceback" not in err


async def test_a_port_that_is_taken(config, write_config, start_process) -> None:
    write_config(config, [])
    for options in (
        ["--port"],
        ["--endpoint-picker-port"],
        ["--workers=2", "--endpoint-picker-port"],
    ):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            router = await start_process(config, *options, str(port), wait=False)
            code, _, err = await router.ended()
        assert code == 2
        assert f"cannot listen on 127.0.0.1:{port}".encode() in err
        assert options[-1].encode() in err
        assert b"Traceback" not in err


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_an_endpoint_picker_without_its_certificate(
    config, write_config, start_process, workers
) -> None:
    write_config(config, [])
    files = ("--endpoint-picker-cert", "none.crt", "--endpoint-picker-key", "none.key")
    option = ("--workers", workers, "--endpoint-picker-port", "0", *files)
    code, _, err = await (await start_process(config, *option, wait=False)).ended()
    assert code == 2
    assert b"cannot read none.crt: No such file or directory" in err


async def test_the_secret_comes_from_a_file_or_the_environment(
    config, write_config, model_entry, start_replica, start_process, client, tmp_path, monkeypatch
) -> None:
    replica = await start_replica()
    write_config(config, [model_entry("m", replica)])
    secret = tmp_path / "secret"
    secret.write_text("from-file\n")
    monkeypatch.setenv("KVASIR_FLEET_SECRET", "from-environment")
    for options, expected in (
        (["--fleet-secret-file", str(secret)], "from-file"),
        ([], "from-environment"),
    ):
        router = await start_process(config, *options)
        await client.post(f"{router.url}/score", json={"model": "m"})
        assert replica.requests[-1].header("x-kvasir-fleet-secret") == expected
        router.signal(signal.SIGTERM)
        await router.ended()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--config"),
        (["--config", "x", "--policy", "magic"], "least_load, prefix_hash"),
        (["--config", "x", "--port", "70000"], "--port"),
        (["--config", "x", "--port", "80", "--admin-port", "80"], "80 is the API's port (--port)"),
        (["--config", "x", "--tls-cert", "c"], "give both or neither"),
        (["--config", "x", "--endpoint-picker-key", "k"], "give both or neither"),
        (["--config", "x", "--endpoint-picker-port", "8080"], "8080 is that of --port too"),
        (["--config", "x", "--endpoint-picker-body-mode", "some"], "full_duplex"),
        (["--config", "x", "--response-store", "/data/x"], "must be of the form sqlite:///PATH"),
        (["--config", "x", "--spend-store", "/data/x"], "must be of the form sqlite:///PATH"),
        (
            ["--config", "x", "--spend-store", "sqlite:///x", "--routers", "2"],
            "2 routers (--routers) cannot share a file; use redis://",
        ),
        (["--config", "x", "--trusted-proxy", "10.0.0.1/8"], "is no network: write an address"),
        (["--config", "x", "--proxy-protocol", "all"], "is no network: write an address"),
        (
            ["--config", "x", "--response-store", "sqlite:///x", "--routers", "2"],
            "2 routers (--routers) cannot share a file",
        ),
        (["--config", "x", "--cors-origin", "app.example.com"], "https://app.example.com"),
        (["--config", "x", "--cors-origin", "https://a.example/"], "'https://a.example/' is no or"),
        (["--config", "x", "--policy-option", "session.header=a b"], "header must match pattern"),
        (["--config", "x", "--policy-option", "kv_aware.weight=1"], "did you mean "),
        (["--config", "x", "--policy-option", "kv_aware=1"], "'kv_aware=1' is not of the form POL"),
        (["--config", "x", "--slo", "m=0:0.1"], "'m=0:0.1' is not of the form MODEL=TTFT:ITL"),
        (["--config", "x", "--otlp-endpoint", "http://"], "'http://' must be of the form"),
        (["--config", "x", "--otlp-endpoint", "http://a:x"], "'http://a:x' must be of the form"),
        (["--config", "x", "--discovery", "kubernetes"], "leave one of the two out"),
    ],
)
def test_bad_options_are_explained(options: list[str], words: str) -> None:
    result = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "200"}).invoke(app, options)
    assert result.exit_code == 2
    assert words in result.output


@pytest.mark.parametrize("content", [b"\xff\xfe", b"two\vlines", "schl\u00fcssel".encode()])
def test_a_secret_that_is_no_header_is_refused(tmp_path: Path, content: bytes) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(content)
    options = ["--config", "x", "--fleet-secret-file", str(secret)]
    result = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "200"}).invoke(app, options)
    assert result.exit_code == 2
    assert "--fleet-secret-file" in result.output
    assert "printable ASCII" in result.output


def test_origins_and_names_that_are_good(monkeypatch) -> None:
    seen: list[RouterSettings] = []
    monkeypatch.setattr("kvasir_router.command._run", seen.append)
    origins = ["*", "https://app.example.com", "http://localhost:3000", "http://[::1]:3000"]
    options = [word for origin in origins for word in ("--cors-origin", origin)]
    result = CliRunner().invoke(
        app, ["--config", "x", "--policy-option", "session.cookie=a.b_c", *options]
    )
    assert result.exit_code == 0, result.output
    assert seen[0].cors_origins == tuple(origins)
    assert seen[0].policy_options == {"session": {"cookie": "a.b_c"}}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_certificates_that_are_missing_are_named(config, write_config, tmp_path, workers) -> None:
    write_config(config, [])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "kvasir_router", "--config", str(config), "--port", "0"),
            *("--admin-port", "0", "--tls-cert", "none.crt", "--tls-key", "none.key"),
            *("--workers", workers),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    sentence = "kvasir router: cannot read none.crt: No such file or directory"
    assert sentence in done.stderr.splitlines()


def test_options_that_are_not_given_are_the_settings_own(monkeypatch) -> None:
    seen: list[RouterSettings] = []
    monkeypatch.setattr("kvasir_router.command._run", seen.append)
    for name in ("KVASIR_FLEET_SECRET", "KVASIR_KEYS_FILE", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(app, ["--config", "fleet.yaml"])
    assert result.exit_code == 0, result.output
    assert seen == [RouterSettings(config=Path("fleet.yaml"))]


def test_help_shows_a_discovery_file() -> None:
    result = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "200"}).invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "replicas:" in result.output
    assert "--drain-timeout" in result.output


def test_the_command_loads_nothing_it_does_not_need() -> None:
    code = (
        "import sys, kvasir_router.command\n"
        "heavy = {'fastapi', 'uvloop', 'pydantic', 'prometheus_client', 'httptools'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--slo", "m=fast"), ("--slo", "MODEL=TTFT:ITL")),
        (("--otlp-endpoint", "localhost:4318"), ("--otlp-endpoint", "http://")),
        (("--routers", "0"), ("--routers",)),
    ],
)
def test_options_of_admission_and_tracing_are_checked(config, options, words) -> None:
    runner = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "200"})
    result = runner.invoke(app, ["--config", str(config), *options])
    assert result.exit_code == 2
    assert all(word in result.output for word in words)


def test_a_bad_key_file_ends_the_start_in_one_sentence(config, write_config, tmp_path) -> None:
    write_config(config, [])
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{id: a}]")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "kvasir_router", "--config", str(config)),
            *("--port", "0", "--admin-port", "0", "--keys-file", str(keys)),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "keys[0].hash" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
