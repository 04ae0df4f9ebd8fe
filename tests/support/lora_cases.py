"""Specs with LoRA adapters: taken, and refused with what is said."""

from __future__ import annotations

from typing import Any


def spec(uri: str, *adapters: tuple[str, str], **more: Any) -> dict[str, Any]:
    model = {"uri": uri, **more.pop("model", {})}
    return {"model": model, "adapters": [{"name": n, "uri": u} for n, u in adapters], **more}


HUB = "hf://org/model"

LORA: dict[str, dict[str, Any]] = {
    "adapters": spec(
        HUB, ("sql", "hf://org/sql@main"), ("Org/Chat", "org/chat"), ("s", "s3://b/s")
    ),
    "no adapters yet": spec(HUB),
    "adapter on the model's claim": spec("pvc://claim/model", ("sql", "pvc://claim/sql")),
    "adapter on the cache's claim": spec(
        HUB, ("sql", "pvc://mine/sql"), cache={"pvc": {"claimName": "mine"}}
    ),
    "adapter in the image": spec(
        "builtin://kvasir-tiny", ("sql", "file:///adapters/sql"), engine={"image": "own:1"}
    ),
}

REFUSED_LORA: dict[str, tuple[dict[str, Any], str]] = {
    "adapters twice": (spec(HUB, ("a", "org/a"), ("a", "org/b")), "Duplicate value"),
    "adapter's name": (spec(HUB, ("-a", "org/a")), "spec.adapters[0].name"),
    "too many adapters": (spec(HUB, *((f"a{i}", "org/a") for i in range(33))), "at most 32"),
    "adapter as the model": (
        spec(HUB, ("m", "org/a"), model={"name": "m"}),
        "an adapter has the name of the model or of an alias",
    ),
    "adapter as an alias": (
        spec(HUB, ("a", "org/a"), model={"aliases": ["a"]}),
        "an adapter has the name of the model or of an alias",
    ),
    "builtin adapter": (
        spec(HUB, ("a", "builtin://kvasir-tiny")),
        "uri of an adapter must be hf://ORG/NAME[@REVISION]",
    ),
    "adapter without a cache": (
        spec("pvc://claim/model", ("a", "org/a")),
        "an adapter is downloaded into the cache of its model, which this model has none of",
    ),
    "adapter on another claim": (
        spec("pvc://claim/model", ("a", "pvc://other/a")),
        "an adapter with pvc:// lies on the volume that engines mount",
    ),
    "adapter in no image": (
        spec("pvc://claim/model", ("a", "file:///a")),
        "file:// of an adapter names a directory inside the engine's image",
    ),
    "servers' adapters": (
        {
            "model": {},
            "external": {"urls": [{"url": "https://host.example/v1"}]},
            "adapters": [{"name": "a", "uri": "org/a"}],
        },
        "adapters are loaded into engines, and none is made for external",
    ),
}
