"""Admission as a router's settings want it."""

from functools import partial

from kvasir_router.admission.admission import Admission
from kvasir_router.options.router_settings import RouterSettings
from kvasir_router.telemetry.router_metrics import Metrics


def make_admission(settings: RouterSettings, metrics: Metrics) -> Admission:
    """Return the admission of a process, whose files are still to be read."""
    tokens = None
    if settings.issuers_file is not None:
        # Imported here: a router without issuers does without what reads tokens
        from kvasir_router.admission.access_tokens.token_holders import TokenHolders

        tokens = TokenHolders(settings.issuers_file, settings.routers, metrics.file_reported)
    reported = partial(metrics.file_reported, "keys")
    return Admission(settings.keys_file, settings.routers, reported, tokens)
