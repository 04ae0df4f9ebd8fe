"""Following a cluster through everything that an API server and the way to it can do."""

import asyncio
import math
from contextlib import asynccontextmanager

import pytest

from kvasir.kube import watch
from kvasir.kube.watch import Timing
from kvasir.resource import labels
from kvasir_operator.settings import OperatorSettings
from kvasir_router.discovery.kubernetes_source import KubernetesSource
from kvasir_router.options.cluster_scope import ClusterScope
from kvasir_router.policy.registry import policy_names

LLMDS = "/apis/kvasir.dev/v1alpha1/llmdeployments"
NAMES = "/apis/kvasir.dev/v1alpha1/modelnames"
PODS = "/api/v1/pods"
FAST = Timing(pause=0.01, longest_pause=0.05)


class Followed:
    """A source, and what it has said."""

    def __init__(self, api, eventually, namespaces=(), kserve=(), timing=FAST) -> None:
        self.good: list[bool] = []
        self.snapshots = []
        self.source = KubernetesSource(
            ClusterScope(namespaces=namespaces, kserve_namespaces=kserve),
            self.good.append,
            policy_names(),
            api.access,
            timing,
        )
        self._eventually = eventually

    async def follow(self) -> None:
        async for snapshot in self.source.watch():
            self.snapshots.append(snapshot)

    @property
    def models(self) -> dict[str, list[str]]:
        """Model to ids of its replicas, as said last."""
        last = self.snapshots[-1] if self.snapshots else ()
        return {model.name: [each.id for each in model.replicas] for model in last}

    async def shows(self, models: dict[str, list[str]]) -> None:
        await self._eventually(lambda: bool(self.snapshots) and self.models == models)


@pytest.fixture
def follow(eventually):
    @asynccontextmanager
    async def follow(api, *namespaces, kserve=(), timing=FAST):
        followed = Followed(api, eventually, namespaces, kserve, timing)
        task = asyncio.create_task(followed.follow())
        try:
            yield followed
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return follow


@pytest.fixture
async def api(start_api, deployment):
    api = await start_api()
    api.put(LLMDS, deployment("tiny"))
    return api


async def test_nothing_is_said_before_everything_is_listed(api, follow, eventually) -> None:
    async with follow(api) as followed:
        assert await followed.source.load() is None
        await followed.shows({"tiny": []})
        assert len(followed.snapshots) == 1
        await eventually(lambda: len(api.watches) == 3)
    await eventually(lambda: not api.watches)


def test_the_class_is_the_operators_where_neither_is_told() -> None:
    assert ClusterScope().class_name == OperatorSettings().class_name == labels.DEFAULT_CLASS


async def test_an_empty_cluster_is_said_too(start_api, follow) -> None:
    async with follow(await start_api()) as followed:
        await followed.shows({})


async def test_lists_come_in_pages(api, pod, follow, monkeypatch) -> None:
    monkeypatch.setattr(watch, "PAGE_OBJECTS", 3)
    for number in range(8):
        api.put(PODS, pod(f"p{number}"))
    async with follow(api) as followed:
        await followed.shows({"tiny": [f"uid-p{number}/0" for number in range(8)]})
    assert len(followed.snapshots) == 1
    engines = [query for path, query in api.requests if "engine" in query.get("labelSelector", "")]
    assert [query.get("continue") for query in engines[:3]] == [None, "3", "6"]


async def test_changes_arrive_and_what_says_nothing_is_passed_over(
    api, pod, leaving, deployment, follow
) -> None:
    async with follow(api) as followed:
        await followed.shows({"tiny": []})
        api.put(PODS, pod("p1"))
        await followed.shows({"tiny": ["uid-p1/0"]})
        noise = pod("p1")
        noise["status"]["message"] = "a probe's word"
        api.put(PODS, noise)
        api.bookmark()
        api.put(PODS, leaving(pod("p1")))
        await followed._eventually(lambda: followed.snapshots[-1][0].replicas[0].draining)
        api.delete("uid-p1")
        await followed.shows({"tiny": []})
        api.delete("uid-n-tiny")
        await followed.shows({})
    assert len(followed.snapshots) == 5


@pytest.mark.parametrize("end", ["end", "cut"])
async def test_a_watch_that_ends_is_taken_up_where_it_was(
    api, pod, follow, eventually, end
) -> None:
    async with follow(api) as followed:
        await followed.shows({"tiny": []})
        await eventually(lambda: len(api.watches) == 3)
        api.bookmark()
        marked = str(api.version)
        await asyncio.sleep(0.1)
        for watch in list(api.watches):
            if end == "cut":
                watch.write(b'{"type": "ADDED", "obj')
            getattr(watch, end)()
        await eventually(lambda: [each.version for each in api.watches] == [marked] * 3)
        api.put(PODS, pod("p1"))
        await followed.shows({"tiny": ["uid-p1/0"]})
    assert api.count("list") == 3


@pytest.mark.parametrize("way", ["status", "event"])
async def test_a_forgotten_version_means_a_new_list(
    api, pod, deployment, follow, eventually, way
) -> None:
    api.put(PODS, pod("p1"))
    async with follow(api) as followed:
        await followed.shows({"tiny": ["uid-p1/0"]})
        await eventually(lambda: len(api.watches) == 3)
        # All of this is missed:
        api.delete("uid-p1", tell=False)
        api.put(PODS, pod("p2"), tell=False)
        api.put(LLMDS, deployment("other"), tell=False)
        if way == "status":
            api.refuse["watch"] = 410
            for watch in list(api.watches):
                watch.cut()
            api.requests.clear()
            await eventually(lambda: len(api.listed) == 3)
            api.refuse.clear()
        else:
            for watch in list(api.watches):
                watch.send("ERROR", {"kind": "Status", "code": 410, "message": "too old"})
        await followed.shows({"tiny": ["uid-p2/0"], "other": []})


async def test_an_api_server_that_is_gone_changes_nothing_and_is_found_again(
    api, pod, follow, eventually
) -> None:
    api.put(PODS, pod("p1"))
    async with follow(api) as followed:
        await followed.shows({"tiny": ["uid-p1/0"]})
        await eventually(lambda: followed.good[-1:] == [True])
        await api.stop()
        await eventually(lambda: not followed.good[-1])
        await asyncio.sleep(0.3)
        assert len(followed.snapshots) == 1
        api.delete("uid-p1", tell=False)
        api.put(PODS, pod("p2"), tell=False)
        api.refuse["watch"] = 410
        api.requests.clear()
        await api.start()
        await eventually(lambda: len(api.listed) == 3)
        api.refuse.clear()
        await followed.shows({"tiny": ["uid-p2/0"]})
        await eventually(lambda: followed.good[-1])


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
async def test_refusals_are_waited_out(api, follow, eventually, status) -> None:
    api.refuse["all"] = status
    async with follow(api) as followed:
        await eventually(lambda: api.count("list") > 6)
        assert not followed.snapshots
        assert not any(followed.good)
        api.refuse.clear()
        await followed.shows({"tiny": []})
        assert followed.good[-1]


@pytest.mark.slow
async def test_pauses_grow(api, follow, eventually) -> None:
    api.refuse["all"] = 500
    async with follow(api, timing=Timing(pause=0.05, longest_pause=60)):
        await asyncio.sleep(1.0)
        # 0.05, 0.1, 0.2, 0.4 s, of which half may be left out, for each of three collections
        assert api.count("list") <= 3 * 6
        await eventually(lambda: api.count("list") >= 3 * 3)


@pytest.mark.slow
async def test_a_server_that_ends_every_watch_at_once_is_not_overrun(api, follow) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with follow(api, timing=Timing(pause=0.05, longest_pause=60)):
        while loop.time() < began + 1.5:
            await asyncio.sleep(0.01)
            for watch in list(api.watches):
                watch.end()
        # However late a busy machine is: pauses double, and each is at least half of what it says.
        most = 2 + math.log2((loop.time() - began) / 0.025)
        assert api.count("watch") <= 3 * most


async def test_it_lists_anew_from_time_to_time(api, deployment, follow) -> None:
    timing = Timing(resync=0.3, watch=0.3, pause=0.01, longest_pause=0.05)
    async with follow(api, timing=timing) as followed:
        await followed.shows({"tiny": []})
        api.put(LLMDS, deployment("missed"), tell=False)
        for _ in range(200):
            await asyncio.sleep(0.05)
            for watch in list(api.watches):
                watch.end()
            if "missed" in followed.models:
                break
        assert followed.models == {"tiny": [], "missed": []}


async def test_a_silent_watch_is_given_up(api, follow, eventually) -> None:
    timing = Timing(pause=0.01, longest_pause=0.05, silence=0.2)
    async with follow(api, timing=timing) as followed:
        await followed.shows({"tiny": []})
        await eventually(lambda: api.count("watch") > 6)


async def test_an_object_of_another_shape_hurts_nobody_else(api, deployment, follow) -> None:
    api.put(
        LLMDS, {"metadata": {"uid": "odd", "name": "odd", "namespace": "n"}, "spec": {"model": 5}}
    )
    async with follow(api) as followed:
        await followed.shows({"tiny": []})
        api.put(LLMDS, {"metadata": {"uid": "odd2", "name": "odd2"}, "spec": None})
        api.put(LLMDS, deployment("good"))
        await followed.shows({"tiny": [], "good": []})


async def test_a_rejected_token_is_replaced(api, follow, eventually) -> None:
    async with follow(api):
        await eventually(lambda: len(api.watches) == 3)
        api.token = "t2"
        api.refuse["all"] = 401
        asked = len(api.headers)
        for watch in list(api.watches):
            watch.cut()
        await eventually(lambda: len(api.headers) > asked)
        api.refuse.clear()
        await eventually(lambda: len(api.watches) == 3)
    assert all("authorization: bearer t1" in head.lower() for head in api.headers[:6])
    assert "authorization: bearer t2" in api.headers[-1].lower()


async def test_only_the_namespaces_that_are_watched_are_asked_for(api, deployment, follow) -> None:
    api.put(LLMDS, deployment("a", "one"))
    api.put(LLMDS, deployment("b", "two"))
    api.put(LLMDS, deployment("c", "three"))
    async with follow(api, "one", "two") as followed:
        await followed.shows({"a": [], "b": []})
    assert {path for path, _ in api.requests} - {NAMES} == {
        f"{root}/namespaces/{namespace}/{plural}"
        for namespace in ("one", "two")
        for root, plural in (path.rsplit("/", 1) for path in (LLMDS, PODS))
    }


async def test_a_name_belongs_to_whoever_has_its_claim(api, deployment, follow) -> None:
    older = deployment("older", model={"uri": "x", "name": "tiny"})
    older["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
    api.put(LLMDS, older)
    async with follow(api) as followed:
        await followed.shows({"tiny": []})
        api.delete("uid-n-tiny")
        await followed.shows({})
        own = {"labels": {"kvasir.dev/class": "kvasir"}}
        by = {"namespace": "n", "name": "older", "uid": "u"}
        spec = {"name": "tiny", "className": "kvasir", "claimedBy": by}
        api.put(NAMES, {"metadata": {"name": "kvasir.other", "uid": "odd", **own}, "spec": spec})
        api.put(LLMDS, deployment("next"))
        await followed.shows({"next": []})
        api.put(NAMES, {"metadata": {"name": "kvasir.tiny", "uid": "y", **own}, "spec": spec})
        await followed.shows({"tiny": [], "next": []})


async def test_what_ran_before_there_were_claims_is_served_until_its_claim_is_seen(
    start_api, deployment, claims, follow
) -> None:
    """An upgrade: no claim yet, then one that this watch hears of late."""
    api = await start_api()
    it = deployment("tiny")
    it["status"] = {"conditions": [{"type": "Accepted", "status": "True"}]}
    [claim] = claims(it)
    api.put(LLMDS, it)
    api.delete(claim["metadata"]["uid"])
    async with follow(api) as followed:
        await followed.shows({"tiny": []})
        # Of a state in which an LLMDeployment is taken, the claims are listed too
        paths = [path for path, query in api.requests if "limit" in query]
        assert paths.index(LLMDS) < paths.index(NAMES)

        api.put(NAMES, claim, tell=False)
        it["status"] |= {"className": labels.DEFAULT_CLASS}
        it["spec"]["router"] = {"holdSeconds": 7}
        api.put(LLMDS, it)
        await followed._eventually(lambda: followed.snapshots[-1][0].hold == 7)
        api.put(NAMES, claim)
        api.put(LLMDS, deployment("second"))  # its claim comes after the first one's
        await followed.shows({"tiny": [], "second": []})
        api.delete(claim["metadata"]["uid"])
        await followed.shows({"second": []})
    assert [len(models) for models in followed.snapshots] == [1, 1, 2, 1]


async def test_it_asks_for_nothing_but_its_own(api, follow, eventually) -> None:
    async with follow(api, kserve=("k",)):
        await eventually(lambda: len(api.watches) == 4)
    assert api.listed == {
        (LLMDS, ""),
        (NAMES, "kvasir.dev/class=kvasir"),
        (PODS, "kvasir.dev/deployment,kvasir.dev/component=engine"),
        ("/api/v1/namespaces/k/pods", "serving.kserve.io/inferenceservice"),
    }
    for _, query in api.requests:
        assert ("limit" in query) != (query.get("watch") == "true")
        assert query.get("allowWatchBookmarks") == query.get("watch")
