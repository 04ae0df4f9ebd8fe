"""Objects that all relayed requests of a process share."""

from dataclasses import dataclass

from kvasir_router.admission.request_queue import RequestQueue
from kvasir_router.fleet.poison_table import PoisonTable
from kvasir_router.fleet_secrets import FleetSecrets
from kvasir_router.options.failover_settings import Failover
from kvasir_router.proxy.accounting import RequestAccounting
from kvasir_router.proxy.transcript import TranscriptBudget
from kvasir_router.tasks import SupervisedTasks
from kvasir_router.tokenizing.tokenizing import Tokenizing


@dataclass
class RelayServices:
    """Made once by the gateway."""

    failover: Failover
    poison: PoisonTable
    queue: RequestQueue
    tokenizing: Tokenizing
    transcripts: TranscriptBudget
    tasks: SupervisedTasks
    accounting: RequestAccounting
    fleet_secrets: FleetSecrets
