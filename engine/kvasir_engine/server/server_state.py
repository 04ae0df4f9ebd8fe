"""State that the handlers of one API process share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from kvasir.wire.fleet_secret_file import FleetSecretFile
from kvasir_engine.core.client import CoreClient
from kvasir_engine.messages import CoreInfo
from kvasir_engine.server.auth import ApiKeyFile, Keyring
from kvasir_engine.server.generation.api_metrics import ApiMetrics
from kvasir_engine.server.generation.request_log import RequestLog
from kvasir_engine.server.large_bodies.body_workers import BodyWorkers
from kvasir_engine.server.large_bodies.worker_messages import Setup
from kvasir_engine.server.lifecycle import Lifecycle, ServerPhase
from kvasir_engine.server.loaded_adapters import LoadedAdapters
from kvasir_engine.server.loop_turns import LoopTurns
from kvasir_engine.server.openai.api_error import ApiError
from kvasir_engine.server.openai.intake import Intake
from kvasir_engine.server.openai.preparer import Preparer
from kvasir_engine.server.reports.reporter import PromptReporter
from kvasir_engine.server.served_model import ServedModel
from kvasir_engine.server.server_settings import ServerSettings

_NOT_READY = {
    ServerPhase.STARTING: "The model is still loading; /ready says when it serves.",
    ServerPhase.GPU_FAULT: "A GPU has failed; the server ends and admits no new requests.",
    ServerPhase.DRAINING: "The server is shutting down and admits no new requests.",
    ServerPhase.DEAD: "The engine has ended.",
}


class ServerState:
    """The core's client, the model, the settings, and whether requests are taken."""

    def __init__(
        self,
        client: CoreClient,
        model: ServedModel,
        settings: ServerSettings,
        metrics: ApiMetrics,
    ) -> None:
        self.client = client
        self.model = model
        self.settings = settings
        self.metrics = metrics
        self.fleet_secret = FleetSecretFile(
            settings.fleet_secret or "",
            settings.fleet_secret_file,
            partial(metrics.file_reported, "fleet secret"),
        )
        self.api_key_file = ApiKeyFile(
            settings.file_api_keys or "",
            settings.api_key_file,
            partial(metrics.file_reported, "keys"),
        )
        self.keyring = Keyring(settings.api_keys, self.fleet_secret, self.api_key_file)
        self.lifecycle = Lifecycle(client)
        self.adapters = LoadedAdapters(model.names, settings.lora_refusal)
        self.reporter: PromptReporter | None = None
        """Reporter that takes prompts for the routers that watch them; only where gRPC is
        served."""
        self.turns = LoopTurns()
        self.request_log = RequestLog(settings.enable_log_requests, settings.max_log_len)
        self.preparer = Preparer(self.intake, model.defaults, model.parsing)
        self.body_workers = BodyWorkers(self._worker_setup, settings.max_body_bytes)
        self._intake: Intake | None = None

    def make_reporter(
        self, info: CoreInfo, on_watch: Callable[[bool], None] = lambda watched: None
    ) -> PromptReporter:
        """Make `reporter`; `on_watch` is told when a watcher comes and when the last one leaves."""
        self.reporter = PromptReporter(
            self.model.tokenizer,
            info.block_size,
            on_watch,
            self.metrics.prompt_reports_dropped.inc,
        )
        return self.reporter

    @property
    def prompt_reporter(self) -> PromptReporter:
        """The reporter; only where gRPC or a relay of reports was started."""
        if self.reporter is None:
            raise AssertionError("prompt reports were not started.")
        return self.reporter

    def intake(self, name: str | None) -> Intake:
        """Return the maker of requests for the model `name` (None = the only one).

        Raises ApiError: 404 for another name, 503 while requests are not taken.
        """
        self.check_model(name)
        self.check_ready()
        if self._intake is None:
            info = self.lifecycle.served_info
            maker = self.model.request_maker(info, self.settings.max_logprobs)
            self._intake = Intake(maker, info.max_model_len, self.turns)
        if name is not None and name in self.adapters:
            return self._intake.for_adapter(name)
        return self._intake

    def check_ready(self) -> None:
        """Raise a 503 while requests are not taken."""
        if not self.lifecycle.ready:
            raise self._not_ready()

    def _worker_setup(self) -> Setup:
        # A worker has no use for what proves a caller.
        settings = replace(
            self.settings,
            api_keys=(),
            file_api_keys=None,
            api_key_file=None,
            fleet_secret=None,
            fleet_secret_file=None,
        )
        return Setup(settings, self.lifecycle.served_info)

    def loaded_info(self) -> CoreInfo:
        """Return what the core said of the model. Raises a 503 while it loads, and at its end."""
        info = self.lifecycle.info
        if info is None or not self.client.alive:
            raise self._not_ready()
        return info

    def _not_ready(self) -> ApiError:
        phase = self.lifecycle.phase
        # To whoever asks it is the same: go elsewhere
        code = ServerPhase.DRAINING if phase is ServerPhase.GPU_FAULT else phase
        return ApiError(503, _NOT_READY[phase], code=code.value, headers={"retry-after": "1"})

    def check_model(self, name: str | None) -> None:
        """Raise a 404 for a model that is not served here."""
        check_model(self.model, name, self.adapters.names)


def check_model(model: ServedModel, name: str | None, adapters: Sequence[str] = ()) -> None:
    """Raise a 404 for a name that is neither one of `model` nor of its `adapters`; None is any."""
    if name is not None and name not in model.names and name not in adapters:
        raise ApiError(
            404,
            f"The model {name[:200]!r} does not exist here; this server has "
            f"{', '.join(map(repr, (*model.names, *adapters[:20])))}.",
            param="model",
            code="model_not_found",
        )
