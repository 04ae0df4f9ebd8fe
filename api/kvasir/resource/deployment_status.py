"""`status`: what the operator tells, and the reasons it gives."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from kvasir.resource.class_defaults.inherited_status import InheritedStatus
from kvasir.resource.lora.lora_status import LoraAdapterStatuses
from kvasir.resource.rollout.rollout_status import RolloutStatus
from kvasir.resource.strict_model import StrictModel, list_map

MAX_MESSAGE = 1024


class DeploymentPhase(StrEnum):
    """A deployment in one word; the conditions say more."""

    PENDING = "Pending"
    """No engine runs yet."""
    CACHING = "Caching"
    """The model is being downloaded."""
    STARTING = "Starting"
    """Engines load it."""
    READY = "Ready"
    UPDATING = "Updating"
    """The old revision, or a part of the replicas, serves while new ones come."""
    IDLE = "Idle"
    """No replica is asked for."""
    DEGRADED = "Degraded"
    """The model is served with less than it should be, and waiting will not help."""
    FAILED = "Failed"
    """The model is not served, and waiting will not help."""


class ConditionType(StrEnum):
    """The conditions, in the order in which they come true."""

    ACCEPTED = "Accepted"
    """The resource makes sense, and its names are its own."""
    MODEL_CACHED = "ModelCached"
    """The model is where engines read it."""
    FITS = "Fits"
    """One replica fits on the GPUs it asks for."""
    CANARY_HEALTHY = "CanaryHealthy"
    """The new revision does as well as the stable one; only with a canary, and never waited
    for."""
    WORKLOAD_READY = "WorkloadReady"
    """Engines of the newest revision are up, as many as asked for."""
    ROUTER_READY = "RouterReady"
    """Every Ready router serves each of them."""
    SCALING_ACTIVE = "ScalingActive"
    """The autoscaler has its metric; only with spec.autoscaling, and nothing waits for it."""
    PODS_LEAVING = "PodsLeaving"
    """Engine pods will end, as their node will; only while it is so, and nothing waits for it."""
    ADAPTERS_LOADED = "AdaptersLoaded"
    """Every engine that serves holds every LoRA adapter; only with spec.adapters, and nothing waits
    for it."""
    PROGRESSING = "Progressing"
    """A change is under way; normally False."""
    DEGRADED = "Degraded"
    """Something is wrong that will not pass by itself; normally False."""
    RECONCILING = "Reconciling"
    """The same as Progressing, or capacity is waited for, in the words of kstatus; only while it is
    so."""
    STALLED = "Stalled"
    """It is not Ready, and neither waiting nor capacity will help, in the words of kstatus; only
    while it is so."""
    READY = "Ready"
    """All of it: the newest revision serves."""


class Reason(StrEnum):
    """Reason for a condition's status."""

    # Accepted
    ACCEPTED = "Accepted"
    INVALID_SPEC = "InvalidSpec"
    NAME_CONFLICT = "NameConflict"
    NO_IMAGE = "NoImage"
    SECRET_MISSING = "SecretMissing"  # noqa: S105 - a reason's name
    PAUSED = "Paused"
    CRD_OUTDATED = "CRDOutdated"
    UNKNOWN_FIELDS = "UnknownFields"
    PROFILE_MISSING = "ProfileMissing"
    CLASS_REPLACED = "ClassReplaced"
    CA_BUNDLE_MISSING = "CABundleMissing"
    CLAIMS_UNAVAILABLE = "ClaimsUnavailable"
    # ModelCached
    NOT_NEEDED = "NotNeeded"
    CACHED = "Cached"
    DOWNLOADING = "Downloading"
    DOWNLOAD_PENDING = "DownloadPending"
    DOWNLOAD_FAILED = "DownloadFailed"
    CLAIM_MISSING = "ClaimMissing"
    CLAIM_NOT_BOUND = "ClaimNotBound"
    # Fits
    FITS = "Fits"
    DOES_NOT_FIT = "DoesNotFit"
    UNKNOWN = "Unknown"
    # WorkloadReady, Degraded
    AVAILABLE = "Available"
    SCALED_TO_ZERO = "ScaledToZero"
    WAITING = "Waiting"
    STARTING = "Starting"
    ROLLING_OUT = "RollingOut"
    SURGE_UNSCHEDULABLE = "SurgeUnschedulable"
    INSUFFICIENT_GPUS = "InsufficientGPUs"
    UNSCHEDULABLE = "Unschedulable"
    VOLUME_ON_OTHER_NODE = "VolumeOnOtherNode"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_CONFIG = "ContainerConfigError"
    CRASHING = "Crashing"
    PROGRESS_DEADLINE = "ProgressDeadlineExceeded"
    QUOTA_EXCEEDED = "QuotaExceeded"
    PODS_REFUSED = "PodsRefused"
    APPLY_FAILED = "ApplyFailed"
    API_ERROR = "APIError"
    DELETION_STUCK = "DeletionStuck"
    OPERATOR_ERROR = "OperatorError"
    NOT_SERVED = "NotServed"
    UPSTREAM_UNREACHABLE = "UpstreamUnreachable"
    UNKNOWN_FALLBACK = "UnknownFallback"
    AS_EXPECTED = "AsExpected"
    # RouterReady
    ROUTED = "Routed"
    NOT_ROUTED = "NotRouted"
    NO_ROUTER = "NoRouter"
    ROUTERS_SILENT = "RoutersSilent"
    # CanaryHealthy, WorkloadReady
    CANARY_STARTING = "CanaryStarting"
    CANARY_ANALYSING = "CanaryAnalysing"
    CANARY_PAUSED = "CanaryPaused"
    CANARY_PROMOTING = "CanaryPromoting"
    CANARY_PROMOTED = "CanaryPromoted"
    CANARY_ROLLED_BACK = "CanaryRolledBack"
    TOO_FEW_SAMPLES = "TooFewSamples"
    NO_DIFFERENCE = "NoDifference"
    UNDECIDED = "Undecided"
    ERRORS_INCREASED = "ErrorsIncreased"
    REFUSALS_INCREASED = "RefusalsIncreased"
    TTFT_INCREASED = "TTFTIncreased"
    ITL_INCREASED = "ITLIncreased"
    START_FAILED = "StartFailed"
    STEP_TIMEOUT = "StepTimeout"
    ABORTED = "Aborted"
    PROMOTED_BY_HAND = "PromotedByHand"
    # ScalingActive
    METRICS_MISSING = "MetricsMissing"
    SCALED_BY_ANOTHER = "ScaledByAnother"
    # PodsLeaving
    NODE_LEAVES = "NodeLeaves"
    NODE_ENDS = "NodeEnds"
    POD_ASKS = "PodAsks"
    # AdaptersLoaded
    LOADED = "Loaded"
    LOADING = "Loading"
    ADAPTER_REFUSED = "AdapterRefused"
    # Ready
    SERVING = "Serving"


Name = Annotated[str, Field(max_length=256)]
Count = Annotated[int, Field(ge=0)]


class Condition(StrictModel):
    """Condition in the form of KEP-1623."""

    type: Annotated[str, Field(min_length=1, max_length=64)]
    """Condition type."""

    status: Literal["True", "False", "Unknown"]
    """True if the condition holds, False if not, Unknown if that is not known."""

    observed_generation: Count = 0
    """The generation of the resource it is about."""

    last_transition_time: Annotated[
        str, Field(max_length=64, json_schema_extra={"format": "date-time"})
    ]
    """Time at which status changed."""

    reason: Annotated[str, Field(min_length=1, max_length=64)]
    """Reason for the status, as one word."""

    message: Annotated[str, Field(max_length=MAX_MESSAGE)]
    """Reason for the status, as a sentence."""


class CacheStatus(StrictModel):
    """Progress of the model's download."""

    phase: Name
    """listing, downloading, verifying, done or failed."""

    bytes: Count = 0
    """Bytes that are there."""

    total_bytes: Count = 0
    """Bytes of all files; 0 while it is not known."""

    eta_seconds: Count | None = None
    """Seconds that the rest is expected to take."""


class StartupStatus(StrictModel):
    """Seconds that the start of the newest revision's first replica took."""

    schedule_seconds: Count | None = None
    """Seconds until a node was chosen."""

    pull_seconds: Count | None = None
    """Seconds from then until the container ran: volumes and images."""

    load_seconds: Count | None = None
    """Seconds from then until the engine was ready: weights and kernels."""

    route_seconds: Count | None = None
    """Seconds from then until every router served it."""


class FitStatus(StrictModel):
    """Memory and GPUs that one replica needs."""

    weights_gi_b: Annotated[float, Field(ge=0)] | None = Field(alias="weightsGiB", default=None)
    """Weights, in GiB, over all its GPUs."""

    kv_tokens: Count | None = None
    """Tokens that its KV cache holds."""

    kv_cache_dtype: str | None = None
    """Type of its keys and values."""

    tensor: Count | None = None
    """GPUs of one replica."""


class ScalingStatus(StrictModel):
    """Bounds of replicas that schedules give now."""

    min_replicas: Count = 0
    """Replicas, at least."""

    max_replicas: Count = 0
    """Maximum replicas."""

    active_schedules: Annotated[list[Name], Field(max_length=16)] = []
    """Names of the schedules whose windows are open, of those without a name their start."""

    next_change: (
        Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})] | None
    ) = None
    """Time at which a schedule begins or ends next."""


class Status(StrictModel):
    """Status of the deployment, written by the operator."""

    observed_generation: Count = 0
    """The generation that all of this is about."""

    class_name: Annotated[str, Field(max_length=63)] = ""
    """LLMDeploymentClass whose operator has taken this; no other operator writes anything of it
    before that one lets go."""

    phase: Annotated[str, Field(max_length=32)] = ""
    """Pending, Caching, Starting, Ready, Updating, Idle, Degraded or Failed."""

    replicas: Count = 0
    """Engine pods."""

    ready_replicas: Count = 0
    """Engine pods that serve."""

    updated_replicas: Count = 0
    """Engine pods of the newest revision."""

    selector: Annotated[str, Field(max_length=512)] = ""
    """Label selector of the engine pods, for autoscalers."""

    url: Annotated[str, Field(max_length=512)] | None = None
    """URL at which clients reach the model."""

    conditions: Annotated[
        list[Condition],
        Field(
            max_length=16,
            json_schema_extra=list_map("type"),
        ),
    ] = []
    """Accepted, ModelCached, Fits, CanaryHealthy, WorkloadReady, RouterReady, AdaptersLoaded,
    Progressing, Degraded and Ready, which sums them up; PodsLeaving while pods will end, and for
    tools that know kstatus
    Reconciling or Stalled, while it is so."""

    gpus: Name = ""
    """GPUs of one replica: their number and resource; absent without any."""

    inherited: InheritedStatus | None = None
    """Values that the LLMDeploymentClass gives; absent if it gives none."""

    adapters: LoraAdapterStatuses | None = None
    """LoRA adapters, and how many engines hold each; absent without spec.adapters."""

    cache: CacheStatus | None = None
    """Progress of the model's download."""

    startup: StartupStatus | None = None
    """Durations of the start."""

    fit: FitStatus | None = None
    """Memory and GPUs that one replica needs."""

    rollout: RolloutStatus | None = None
    """The canary of the newest revision, or the last one."""

    scaling: ScalingStatus | None = None
    """Bounds of replicas now; only with schedules."""
