"""Command, arguments and variables of the engine's container."""

from __future__ import annotations

from collections.abc import Iterator

from kvasir.kube.objects import Object
from kvasir.resource import engine_command, labels
from kvasir.resource.engines.engine_args import engine_variables, event_flags, lora_variables
from kvasir_operator.plan.site_environment import engine_variables_of
from kvasir_operator.plan.step import PlanInputs
from kvasir_operator.spec_facts import device_of, ports_of

CACHE = "/cache"
"""Mount point of what engines compile."""
_HOST = "0.0.0.0"


def command(inputs: PlanInputs, tensor: int) -> Object:
    """Return the container's command, where its image does not begin with it, and its arguments."""
    engine = inputs.spec.engine
    if engine.type == "custom":
        words = {"command": engine.command, "args": engine.args}
        return {name: list(each) for name, each in words.items() if each}
    program = () if engine.traits.is_entrypoint else engine.traits.program
    arguments = engine_command(
        inputs.deployment,
        host=_HOST,
        port=labels.HTTP_PORT,
        model=inputs.storage.model,
        tensor=tensor,
        program=program[:1],
    )
    found: Object = {"command": list(program)} if program else {}
    return {**found, "args": [*arguments[len(program) :], *_more_flags(inputs)]}


def environment(inputs: PlanInputs, tensor: int) -> Iterator[Object]:
    """Yield the variables: the user's own value of one replaces ours, since an API server refuses a
    name that is given twice."""
    ours = {
        "HOME": "/tmp",  # noqa: S108 - the pod's own
        **_of_type(inputs, tensor),
        **lora_variables(inputs.spec),
        "XDG_CACHE_HOME": CACHE,
        "TRITON_CACHE_DIR": f"{CACHE}/triton",
        "HF_HUB_OFFLINE": "1",
        **engine_variables_of(inputs),
    }
    # A proxy's variable has two spellings, which must not contradict each other
    theirs = {variable.name.upper() for variable in inputs.spec.engine.env}
    for name, value in ours.items():
        if name.upper() not in theirs:
            yield {"name": name, "value": value}
    for variable in inputs.spec.engine.env:
        yield variable.model_dump(by_alias=True, exclude_none=True)


def has_fleet(inputs: PlanInputs) -> bool:
    """Tell if engines are told the fleet's secret: there is one, and they are Kvasir's."""
    return bool(inputs.settings.fleet_secret.text) and inputs.spec.engine.traits.contract


def _of_type(inputs: PlanInputs, tensor: int) -> dict[str, str]:
    engine = inputs.spec.engine
    if engine.type == "kvasir":
        return {"KVASIR_CACHE": CACHE}
    # Torch asks for the user's name, which an image does not know of ours
    found = {"USER": "engine"}
    if engine.type == "custom":
        port, model = ports_of(inputs.spec)["http"], inputs.storage.model
        found |= engine_variables(
            inputs.deployment, host=_HOST, port=port, model=model, tensor=tensor
        )
    return found


def _more_flags(inputs: PlanInputs) -> list[str]:
    """Return the flags of what is so on a cluster alone."""
    engine, ports = inputs.spec.engine, ports_of(inputs.spec)
    flags: list[str] = []
    if engine.type == "kvasir":
        # Left to itself, an engine whose GPU is not visible would serve on the CPU, without a word
        if engine.config.device == "auto" and device_of(inputs.spec) == "cuda":
            flags += ["--device", "cuda"]
        flags += ["--grpc-port", str(labels.GRPC_PORT)]
    if "events" in ports:
        events, replay = (f"tcp://*:{ports[name]}" for name in ("events", "replay"))
        flags += event_flags(engine.traits, events, replay)
    if has_fleet(inputs):
        flags += ["--fleet-secret-file", f"{labels.FLEET_DIRECTORY}/secret"]
    return flags
