"""Run the metrics API: its certificate, its place in the cluster's API, its listener."""

from __future__ import annotations

import asyncio
import base64
import ssl
from typing import Any

import structlog
from aiohttp import web

from kvasir.kube import ApiError, Kind
from kvasir.kube.client import Cluster
from kvasir_operator.controller.view import View
from kvasir_operator.external_metrics.certificate import (
    LIFETIME,
    ServingCertificate,
    make_certificate,
)
from kvasir_operator.external_metrics.front_proxy import (
    FrontProxy,
    FrontProxyError,
    read_front_proxy,
)
from kvasir_operator.external_metrics.metrics_api import GROUP, VERSION, MetricsApi
from kvasir_operator.external_metrics.router_reports import RouterReports
from kvasir_operator.settings import OperatorSettings

API_SERVICES = Kind("apiregistration.k8s.io/v1", "apiservices", namespaced=False)
API_SERVICE = f"{VERSION}.{GROUP}"
_CHECK_SECONDS = 30.0
_RETRY_SECONDS = 2.0

_log = structlog.get_logger("kvasir_operator.external_metrics")


async def serve_external_metrics(cluster: Cluster, view: View, settings: OperatorSettings) -> None:
    """Serve for ever on settings.external_metrics_port, and keep the APIService's caBundle that of
    its certificate. Raises OSError when the port cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.verify_mode = ssl.CERT_OPTIONAL
    registration = Registration(cluster, settings)
    proxy = await _front_proxy(cluster)
    _trust(context, proxy)

    def routers() -> list[dict[str, Any]]:
        return view.ready_routers(settings.router_namespace)

    async with RouterReports(routers, settings) as reports:
        api = MetricsApi(view.held, reports, proxy)
        runner = web.AppRunner(api.application(), access_log=None)
        await runner.setup()
        try:
            registration.renew(context)
            port = settings.external_metrics_port
            await web.TCPSite(runner, settings.host, port, ssl_context=context).start()
            _log.info("serving external metrics", port=port)
            while True:
                await registration.check(context)
                await asyncio.sleep(_CHECK_SECONDS)
                now = await _front_proxy(cluster)
                if now != api.proxy:
                    api.proxy = now
                    _trust(context, now)
        finally:
            await runner.cleanup()


class Registration:
    """The certificate that is served, and its authority in the APIService."""

    def __init__(self, cluster: Cluster, settings: OperatorSettings) -> None:
        self._cluster = cluster
        self._service = settings.external_metrics_service
        self._namespace = settings.namespace
        self._certificate: ServingCertificate | None = None
        self._renew_at = 0.0

    def renew(self, context: ssl.SSLContext) -> None:
        """Make another certificate, which `context` serves from now on."""
        host = f"{self._service}.{self._namespace}.svc"
        self._certificate = make_certificate((host, f"{host}.cluster.local"))
        self._certificate.load_into(context)
        self._renew_at = asyncio.get_running_loop().time() + LIFETIME.total_seconds() / 2

    async def check(self, context: ssl.SSLContext) -> None:
        """Renews what is half way to its end, and writes the APIService unless it is right."""
        if self._certificate is None or asyncio.get_running_loop().time() > self._renew_at:
            self.renew(context)
        try:
            await self._write()
        except ApiError as error:
            _log.warning("the APIService could not be kept", name=API_SERVICE, error=str(error))

    async def _write(self) -> None:
        found = await self._cluster.get(API_SERVICES, None, API_SERVICE)
        if found is None:
            _log.warning("there is no APIService", name=API_SERVICE)
            return
        spec = found["spec"]
        service = spec.get("service") or {}
        if (service.get("namespace"), service.get("name")) != (self._namespace, self._service):
            _log.warning("the APIService is another server's", name=API_SERVICE, service=service)
            return
        assert self._certificate is not None  # noqa: S101 - check has just made it
        bundle = base64.b64encode(self._certificate.authority).decode()
        if spec.get("caBundle") != bundle:
            patch = {
                "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
                "spec": {"caBundle": bundle, "insecureSkipTLSVerify": False},
            }
            await self._cluster.merge(API_SERVICES, "", API_SERVICE, patch)
            _log.info("wrote the APIService", name=API_SERVICE)


async def _front_proxy(cluster: Cluster) -> FrontProxy:
    """Wait until the cluster tells."""
    while True:
        try:
            return await read_front_proxy(cluster)
        except (ApiError, FrontProxyError) as error:
            _log.warning("the front proxy's authority could not be read", error=str(error))
            await asyncio.sleep(_RETRY_SECONDS)


def _trust(context: ssl.SSLContext, proxy: FrontProxy) -> None:
    """Take client certificates of the front proxy's authority, beside those trusted before."""
    try:
        context.load_verify_locations(cadata=proxy.authority)
    except ssl.SSLError as error:
        _log.error("the front proxy's authority is no certificate", error=str(error))
