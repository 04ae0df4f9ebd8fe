"""Settings of the endpoint picker."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvasir.cli.flags import flag
from kvasir_router.options.router_panels import PICKER


@dataclass(frozen=True, slots=True)
class PickerSettings:
    """Settings of the endpoint picker, which gateways ask by Envoy's external processing."""

    port: int | None = flag(
        None,
        "Port (gRPC) on which the router is the endpoint picker of an InferencePool: gateways ask "
        "it where a request goes and carry the bytes themselves. Without it there is none.",
        PICKER,
        "endpoint_picker_port",
        min=0,
        max=65535,
    )
    cert: Path | None = flag(
        None,
        "Certificate chain (PEM) for that port, which may be self-signed; needs "
        "--endpoint-picker-key. Both files are read again when they change. Without it, no TLS, "
        "which gateways have to be told.",
        PICKER,
        "endpoint_picker_cert",
        dir_okay=False,
    )
    key: Path | None = flag(
        None,
        "Its private key (PEM), not encrypted.",
        PICKER,
        "endpoint_picker_key",
        dir_okay=False,
    )
    namespace: str | None = flag(
        None,
        "Namespace of the InferencePool: only engines of LLMDeployments there are picked. Without "
        "it, all.",
        PICKER,
        "endpoint_picker_namespace",
    )
    target_port: int | None = flag(
        None,
        "Target port of the InferencePool: only engines with that port are picked. Without it, "
        "all.",
        PICKER,
        "endpoint_picker_target_port",
        min=1,
        max=65535,
    )
    body_mode: Literal["full_duplex", "buffered"] = flag(
        "full_duplex",
        "How gateways that do not say it themselves send bodies: full_duplex "
        "(FULL_DUPLEX_STREAMED) or buffered (BUFFERED).",
        PICKER,
        "endpoint_picker_body_mode",
    )
    endpoints: int = flag(
        1,
        "Endpoints that a gateway is told for a request at most, the best first: it may go on to "
        "the next where one cannot be reached. More than one needs version 0.4 of the endpoint "
        "picker protocol, and retries in the gateway.",
        PICKER,
        "endpoint_picker_endpoints",
        min=1,
        max=16,
    )
    message_bytes: int = flag(
        4 * 2**20,
        "Longer messages of gateways end their stream. A buffered body is one message.",
        PICKER,
        "endpoint_picker_message_bytes",
        min=64 * 2**10,
        max=2**31 - 1,
    )
    streams: int = flag(
        8192,
        "Requests that gateways may have under way in each process; one more is refused.",
        PICKER,
        "endpoint_picker_streams",
        min=1,
    )
