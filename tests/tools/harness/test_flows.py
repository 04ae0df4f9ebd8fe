"""Flows made of conntrack's lines and kubectl's objects."""

from __future__ import annotations

import json

from harness.network_policy import End
from harness.proof.flows import Flow, connections, documents, end_of, judged

LOG = """\
    [NEW] tcp      6 120 SYN_SENT src=10.244.1.9 dst=10.96.7.7 sport=40000 dport=80 [UNREPLIED] \
src=10.244.2.3 dst=10.244.1.9 sport=8080 dport=40000
    [NEW] tcp      6 120 SYN_SENT src=10.244.1.9 dst=10.244.2.4 sport=40001 dport=8000 [UNREPLIED] \
src=10.244.2.4 dst=10.244.1.9 sport=8000 dport=40001
conntrack v1.4.7 (conntrack-tools): 2 flow events have been shown.
"""
POD = {
    "metadata": {"namespace": "a", "labels": {"kvasir.dev/component": "engine"}},
    "spec": {
        "containers": [
            {"name": "x", "ports": [{"name": "http", "containerPort": 8000}, {"containerPort": 9}]}
        ]
    },
    "status": {"podIP": "10.244.2.4"},
}
NOBODY = {
    "metadata": {"namespace": "a"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": []},
}


def test_a_services_connection_goes_to_the_pod_behind_it() -> None:
    assert connections(LOG) == {
        ("10.244.1.9", "10.244.2.3", 8080),
        ("10.244.1.9", "10.244.2.4", 8000),
    }


def test_objects_come_one_after_the_other() -> None:
    text = "".join(json.dumps(each, indent=4) + "\n" for each in (POD, NOBODY))
    assert list(documents(text.splitlines(keepends=True))) == [POD, NOBODY]


def test_what_counts_are_flows_to_pods_of_ours() -> None:
    engine = end_of(POD, "10.244.2.4")
    assert engine[0].ports == {"http": 8000}
    ends = {
        "10.244.2.4": engine,
        "10.244.1.9": (End("b", {}, "10.244.1.9"), "stranger"),
        "10.244.2.1": (End(ip="10.244.2.1"), "node"),
    }
    found = [
        ("10.244.1.9", "10.244.2.4", 8000),
        ("10.244.2.1", "10.244.2.4", 8000),
        ("10.244.2.4", "10.244.1.9", 80),
        ("192.0.2.1", "10.244.2.4", 8001),
    ]
    flows = {Flow("stranger", "engine", 8000), Flow("outside", "engine", 8001)}
    assert judged(found, ends, []) == (flows, set())
    assert judged(found, ends, [NOBODY]) == (set(), flows)
