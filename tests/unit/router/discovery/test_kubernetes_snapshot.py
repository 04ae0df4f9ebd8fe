"""What becomes of a cluster's objects, as a table."""

import msgspec
import pytest

from kvasir.resource import labels
from kvasir.resource.lora.lora_held import HeldAdapters
from kvasir.resource.ownership.name_claims import Holder, read_claim
from kvasir_router.discovery.kubernetes_objects import LLMDeployment
from kvasir_router.discovery.kubernetes_pods import read_engine, read_kserve
from kvasir_router.discovery.kubernetes_snapshot import ClusterObjects, snapshot
from kvasir_router.discovery.specs import (
    Departure,
    EngineKind,
    MatchSpec,
    ModelSpec,
    PolicySpec,
    ReplicaSpec,
    SplitSpec,
)
from kvasir_router.options.cluster_scope import ClusterScope
from kvasir_router.policy.registry import policy_names

SCOPE = ClusterScope(kserve_namespaces=("n", "z"))


def raw(content) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(content))


@pytest.fixture
def of(claims):
    """of(deployments, pods, kserve): the models; a name is claimed by the first that has it."""

    def of(deployments=(), pods=(), kserve=(), scope=SCOPE):
        made = {}
        for claim in map(read_claim, (each for it in deployments for each in claims(it))):
            made.setdefault(claim.name, claim)
        found = ClusterObjects(
            made.values(),
            msgspec.convert(list(deployments), list[LLMDeployment]),
            map(read_engine, map(raw, pods)),
            map(read_kserve, map(raw, kserve)),
        )
        return snapshot(found, scope, policy_names())

    return of


@pytest.fixture
def replicas(of):
    """replicas(*pods): of the one model that they belong to."""

    def replicas(*pods):
        metadata = {"uid": "u", "name": "tiny", "namespace": "n"}
        [model] = of([{"metadata": metadata, "spec": {"model": {}}}], pods)
        return model.replicas

    return replicas


def test_a_deployment_with_its_engines(of, deployment, pod) -> None:
    it = deployment(
        "tiny",
        model={"uri": "x", "name": "kvasir-tiny", "aliases": ["a", "b"]},
        router={"policy": "session", "holdSeconds": 300},
    )
    engine = pod("p1", ip="10.0.0.1", restarts=2)
    engine["spec"]["nodeName"] = "n1"
    engine["spec"]["containers"][0]["ports"] += [
        {"name": "grpc", "containerPort": 8001, "protocol": "TCP"},
        {"name": "events", "containerPort": 5557},
        {"name": "replay", "containerPort": 5558},
    ]
    replica = ReplicaSpec(
        "uid-p1/2",
        "10.0.0.1",
        8000,
        grpc_port=8001,
        kv_events="tcp://10.0.0.1:5557",
        kv_replay="tcp://10.0.0.1:5558",
        node="n1",
        namespace="n",
    )
    policy = PolicySpec("session")
    model = ModelSpec("kvasir-tiny", ("a", "b"), (replica,), policy=policy, hold=300.0)
    assert of([it], [engine]) == (model,)


@pytest.mark.parametrize(("named", "read"), [("org/m@v1", "org/m@v1"), ("/etc/x", None)])
def test_a_deployments_tokenizer_is_one_on_the_hub(of, deployment, named, read) -> None:
    [model] = of([deployment("tiny", router={"tokenizer": named})])
    assert model.tokenizer == read


def test_a_deployment_without_engines_is_a_model(of, deployment) -> None:
    assert of([deployment("tiny")]) == (ModelSpec("tiny"),)


def test_pods_belong_to_the_deployment_of_their_namespace(of, deployment, pod) -> None:
    others = [pod("p1", "tiny", "elsewhere"), pod("p2", "other")]
    assert of([deployment("tiny")], others) == (ModelSpec("tiny"),)


def test_a_policy_of_a_newer_version_is_the_routers_own(of, deployment) -> None:
    [model] = of([deployment("tiny", router={"policy": "oracle"})])
    assert model.policy is None


def test_a_name_is_that_of_whoever_claimed_it_first(of, deployment) -> None:
    """Not the oldest one's, who may have taken the name among its aliases today."""
    first, older = deployment("first"), deployment("older", "other")
    older["spec"]["model"] |= {"name": "first", "aliases": ["own"]}
    older["metadata"]["creationTimestamp"] = "2025-01-02T00:00:00Z"
    models = of([first, older])
    assert [(each.name, each.aliases) for each in models] == [("own", ()), ("first", ())]
    assert [each.name for each in of([older, first])] == ["first"]


def test_a_name_without_a_claim_is_nobodys(of, deployment, claims) -> None:
    it = deployment("tiny", model={"uri": "x", "name": "tiny", "aliases": ["a"]})
    [_, alias] = [read_claim(each) for each in claims(it)]
    found = msgspec.convert([it], list[LLMDeployment])
    assert snapshot(ClusterObjects([alias], found), SCOPE, ()) == (ModelSpec("a"),)
    assert snapshot(ClusterObjects([], found), SCOPE, ()) == ()
    assert snapshot(ClusterObjects([alias], found), ClusterScope(class_name="other"), ()) == ()


def test_a_name_from_before_there_were_claims_is_served_until_somebody_has_it(
    deployment, claims
) -> None:
    found = msgspec.convert([deployment("tiny")], list[LLMDeployment])
    unclaimed = {"tiny": Holder("n", "tiny")}
    assert snapshot(ClusterObjects((), found, unclaimed=unclaimed), SCOPE, ()) == (
        ModelSpec("tiny"),
    )
    [taken] = map(read_claim, claims(deployment("other") | {"spec": {"model": {"name": "tiny"}}}))
    assert snapshot(ClusterObjects([taken], found, unclaimed=unclaimed), SCOPE, ()) == ()


def test_a_name_given_up_is_not_served_though_it_is_still_claimed(of, deployment, claims) -> None:
    before = deployment("tiny", model={"uri": "x", "aliases": ["old"]})
    found = msgspec.convert([deployment("tiny")], list[LLMDeployment])
    claimed = ClusterObjects(map(read_claim, claims(before)), found)
    assert snapshot(claimed, SCOPE, ()) == (ModelSpec("tiny"),)


@pytest.mark.parametrize(
    ("change", "listed", "draining"),
    [
        ({}, True, False),
        ({"podIP": ""}, False, False),
        ({"phase": "Failed"}, False, False),
        ({"phase": "Succeeded"}, False, False),
        ({"containerStatuses": []}, False, False),
        ({"conditions": [{"type": "DisruptionTarget", "status": "True"}]}, True, True),
        ({"conditions": [{"type": "DisruptionTarget", "status": "False"}]}, True, False),
        ({"conditions": [{"type": "Ready", "status": "False"}]}, True, False),
        # A readiness probe that failed late says less than the router's own.
        ({"conditions": [{"type": "ContainersReady", "status": "False"}]}, True, False),
    ],
)
def test_which_pods_serve(replicas, pod, change, listed, draining) -> None:
    it = pod("p1")
    it["status"] |= change
    assert [each.draining for each in replicas(it)] == [draining] * listed


@pytest.mark.parametrize(
    ("conditions", "annotation", "departure"),
    [
        ([], "", Departure.NONE),
        ([(labels.LEAVING, "True", labels.NODE_LEAVES)], "", Departure.LATER),
        ([(labels.LEAVING, "True", labels.NODE_ENDS)], "", Departure.NOW),
        ([(labels.LEAVING, "True", labels.POD_ASKS)], "", Departure.NOW),
        # Of a newer operator
        ([(labels.LEAVING, "True", "Unheard")], "", Departure.LATER),
        ([(labels.LEAVING, "True", None)], "", Departure.LATER),
        ([(labels.LEAVING, "False", labels.NODE_ENDS)], "", Departure.NONE),
        # Without an operator's word
        ([], "XID 79", Departure.NOW),
        ([(labels.LEAVING, "True", labels.NODE_LEAVES)], "XID 79", Departure.NOW),
        ([("DisruptionTarget", "True", "TerminationByKubelet")], "", Departure.NOW),
        ([("DisruptionTarget", "True", "EvictionByEvictionAPI")], "", Departure.NONE),
    ],
)
def test_which_pods_are_about_to_leave(replicas, pod, conditions, annotation, departure) -> None:
    it = pod("p1")
    names = ("type", "status", "reason")
    it["status"]["conditions"] = [dict(zip(names, each, strict=True)) for each in conditions]
    if annotation:
        it["metadata"]["annotations"] = {labels.LEAVE: annotation}
    assert [each.departure for each in replicas(it)] == [departure]


def test_an_engine_counts_from_the_end_of_its_startup_probe(replicas, pod) -> None:
    assert replicas(pod("p1", started=False)) == ()
    told = pod("p1", started=False)
    told["status"]["conditions"] = [{"type": "ContainersReady", "status": "True"}]
    assert len(replicas(told)) == 1


def test_a_container_that_ended_does_not_serve(replicas, pod) -> None:
    it = pod("p1")
    it["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    assert replicas(it) == ()


def test_a_pod_that_is_deleted_drains_at_once(replicas, pod, leaving) -> None:
    assert [each.draining for each in replicas(leaving(pod("p1")))] == [True]


def test_ipv6(replicas, pod) -> None:
    it = pod("p1", ip="fd00::7")
    it["spec"]["containers"][0]["ports"].append({"name": "events", "containerPort": 5557})
    [replica] = replicas(it)
    assert (replica.host, replica.kv_events) == ("fd00::7", "tcp://[fd00::7]:5557")


def kserve_pod(pod, name, service, namespace="n", engine=None, **options):
    it = pod(
        name,
        service,
        namespace,
        label="serving.kserve.io/inferenceservice",
        container="kserve-container",
        **options,
    )
    if engine is not None:
        it["metadata"]["labels"]["kvasir.dev/engine"] = engine
    return it


def test_kserves_pods_serve_under_their_services_name(of, pod) -> None:
    sidecar = {"name": "queue-proxy", "ports": [{"containerPort": 9}]}
    own = kserve_pod(pod, "p1", "llama", engine="kvasir-open", port=8081)
    own["spec"]["containers"].insert(0, sidecar)
    plain = kserve_pod(pod, "p2", "llama")
    plain["spec"]["containers"][0]["ports"] = []
    assert of(kserve=[own, plain]) == (
        ModelSpec(
            "llama",
            replicas=(
                ReplicaSpec("uid-p1/0", "127.0.0.1", 8081, engine=EngineKind.KVASIR_OPEN),
                ReplicaSpec("uid-p2/0", "127.0.0.1", 8080, engine=EngineKind.OPENAI),
            ),
        ),
    )


def publishing(pod, name, tokenizer):
    it = kserve_pod(pod, name, "llama", engine="vllm")
    it["spec"]["containers"][0]["ports"] += [
        {"name": "events", "containerPort": 5557},
        {"name": "replay", "containerPort": 5558},
    ]
    it["metadata"]["annotations"] = {"kvasir.dev/tokenizer": tokenizer, "other": "x"}
    return it


def test_kv_events_of_kserves_pods_are_read_with_the_tokenizer_they_name(of, pod) -> None:
    [model] = of(kserve=[publishing(pod, "p1", "hf://org/llama@v2")])
    assert model.tokenizer == "hf://org/llama@v2"
    assert model.replicas[0].kv_events == "tcp://127.0.0.1:5557"
    assert model.replicas[0].kv_replay == "tcp://127.0.0.1:5558"
    silent = publishing(pod, "p2", "org/llama")
    silent["spec"]["containers"][0]["ports"] = []
    assert [each.tokenizer for each in of(kserve=[silent])] == [None]


@pytest.mark.parametrize("tokenizer", ["/etc", "file:///etc", "s3://a/b", "a b", "a/" + "b" * 200])
def test_a_pod_names_no_file_of_the_routers(of, pod, tokenizer) -> None:
    [model] = of(kserve=[publishing(pod, "p1", tokenizer)])
    assert model.tokenizer is None


def test_of_ports_without_names_the_first_serves(of, pod) -> None:
    it = kserve_pod(pod, "p1", "llama")
    it["spec"]["containers"][0]["ports"] = [{"containerPort": 7000}, {"containerPort": 9000}]
    assert of(kserve=[it])[0].replicas[0].port == 7000


def test_a_kserve_pod_never_gets_the_fleets_secret(of, pod) -> None:
    """Anybody who may make pods may give them KServe's label, and any other one."""
    [model] = of(kserve=[kserve_pod(pod, "p1", "llama", engine="kvasir")])
    assert model.replicas[0].engine is not EngineKind.KVASIR


def test_a_claimed_name_comes_before_a_services(of, deployment, pod) -> None:
    pods = [
        kserve_pod(pod, "p1", "tiny"),
        kserve_pod(pod, "p2", "b", "z"),
        kserve_pod(pod, "p3", "b"),
    ]
    models = of([deployment("tiny")], kserve=pods)
    assert [(each.name, len(each.replicas)) for each in models] == [("tiny", 0), ("b", 1)]
    assert models[1].replicas[0].id == "uid-p3/0"
    [_, other] = of(
        [deployment("tiny")], kserve=pods, scope=ClusterScope(kserve_namespaces=("z", "n"))
    )
    assert other.replicas[0].id == "uid-p2/0", "the namespace that is listed first"


def test_kserves_pods_serve_only_where_the_release_says_so(of, pod) -> None:
    pods = [kserve_pod(pod, "p1", "a"), kserve_pod(pod, "p2", "b", "z")]
    assert of(kserve=pods, scope=ClusterScope()) == ()
    assert [
        each.name for each in of(kserve=pods, scope=ClusterScope(kserve_namespaces=("z",)))
    ] == ["b"]


def test_a_canary_is_split_as_the_operator_tells(of, deployment, pod) -> None:
    it = deployment("tiny")
    it["status"] = {}
    it["status"]["rollout"] = {
        "phase": "Analysing",
        "split": {
            "id": "new.1.2",
            "revision": "new",
            "weight": 25,
            "matches": [{"header": {"name": "X-Canary", "value": "Yes"}}, {"keyId": "team-a"}],
            "minSamples": 100,
        },
    }
    stable, canary = pod("p1", ip="10.0.0.1"), pod("p2", ip="10.0.0.2")
    stable["metadata"]["labels"]["kvasir.dev/revision"] = "old"
    canary["metadata"]["labels"] |= {"kvasir.dev/revision": "new", "kvasir.dev/track": "canary"}
    [model] = of([it], [stable, canary])
    matches = (MatchSpec("x-canary", "Yes"), MatchSpec(key_id="team-a"))
    assert model.split == SplitSpec("new.1.2", "new", 0.25, matches, 100)
    assert [(each.revision, each.canary) for each in model.replicas] == [
        ("old", False),
        ("new", True),
    ]


def test_while_it_is_promoted_a_split_has_no_weight(of, deployment) -> None:
    it = deployment("tiny")
    it["status"] = {"rollout": {"split": {"id": "new.1.2.all", "revision": "new"}}}
    assert of([it])[0].split == SplitSpec("new.1.2.all", "new", None)
    it["status"] = {"rollout": {"phase": "RolledBack"}}
    assert of([it])[0].split is None


def test_adapters_are_names_of_their_own_and_held_by_the_run_that_says_so(
    of, deployment, pod
) -> None:
    it = deployment("tiny", adapters=[{"name": "sql", "uri": "x"}, {"name": "chat", "uri": "y"}])
    pods = [pod("p1"), pod("p2"), pod("p3"), pod("p4")]
    held = HeldAdapters("uid-p1/0", {"sql": "/sql"}, {"chat": "no"})
    for each, text in zip(pods, (held.written(), held.written(), "no json"), strict=False):
        each["metadata"]["annotations"] = {labels.ADAPTERS: text}
    [model] = of([it], pods)
    assert model.adapters == ("sql", "chat")
    assert [each.adapters for each in model.replicas] == [("sql",), (), (), ()]
    [plain] = of([deployment("tiny")], pods[1:])
    assert [each.adapters for each in plain.replicas] == [None, None, None]
