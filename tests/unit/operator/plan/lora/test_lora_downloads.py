"""Adapters' way onto the model's volume."""

from __future__ import annotations

from typing import Any

import pytest
from support.operators.downloads import HUB, SECRETS, claim, ended, job_pod, removed

from kvasir.models.download.progress import DownloadPhase, Progress
from kvasir_operator.objects import format_time

SINCE = "2026-01-02T03:04:05Z"
ADAPTERS = {"adapters": [{"name": "sql", "uri": "hf://org/sql"}, {"name": "x", "uri": "s3://b/x"}]}


def jobs_of(made: Any) -> list[dict[str, Any]]:
    return [each for each in made.manifests if each["kind"] == "Job"]


@pytest.fixture
def cached(world: Any) -> Any:
    """A world whose model is on its volume, with two adapters that are not."""
    it = world({**HUB, **ADAPTERS}).see(secrets=SECRETS, claim=claim())
    (model,) = jobs_of(it.plan())
    return it.see(jobs=(ended(model, "Complete", SINCE),))


def test_they_are_downloaded_after_the_model_beside_it(cached: Any, make: Any) -> None:
    made = cached.plan()
    sql, other = jobs_of(made)
    (container,) = sql["spec"]["template"]["spec"]["containers"]
    assert container["args"][:5] == ["download", "hf://org/sql", "--to", "/models", "--adapter"]
    kept = [
        word for at, word in enumerate(container["args"]) if container["args"][at - 1] == "--in-use"
    ]
    assert kept == ["hf://org/model", "hf://org/sql", "s3://b/x"]
    assert any(each["name"] == "HF_TOKEN" for each in container["env"])
    (s3,) = other["spec"]["template"]["spec"]["containers"]
    assert "envFrom" not in s3, "the model's secret is not one for S3"
    assert len(sql["metadata"]["name"]) <= 63
    assert made.adapters == {}
    assert make.condition(made, "AdaptersLoaded")[:2] == ("False", "DownloadPending")
    assert "Deployment" in [each["kind"] for each in made.manifests], "engines do not wait for them"


def test_none_begins_before_the_model_is_there(world: Any) -> None:
    it = world({**HUB, **ADAPTERS}).see(secrets=SECRETS, claim=claim())
    assert len(jobs_of(it.plan())) == 1


def test_what_is_there_is_wanted_of_engines(cached: Any, make: Any) -> None:
    sql, other = jobs_of(cached.plan())
    progress = Progress(DownloadPhase.DOWNLOADING, 1 << 20, 1 << 22)
    done = ended(sql, "Complete", SINCE)
    cached.see(
        jobs=(*cached.observed.jobs, done, other), progress={other["metadata"]["name"]: progress}
    )
    made = cached.plan()
    assert list(made.adapters) == ["sql"]
    assert made.adapters["sql"].startswith("/models/hf-org-sql-")
    assert not removed(made)
    assert "1.0 MiB of 4.0 MiB" in made.status["adapters"][1]["message"]


def test_one_that_failed_is_told_of_and_degrades(cached: Any, make: Any) -> None:
    sql, other = jobs_of(cached.plan())
    name = sql["metadata"]["name"]
    words = Progress(DownloadPhase.FAILED, error="it has no adapter_config.json", permanent=True)
    failed = ended(sql, "Failed", format_time(make.NOW))
    pod = job_pod(name, words.termination_message())
    made = cached.see(jobs=(*cached.observed.jobs, failed, other), job_pods=(pod,)).plan()
    assert make.condition(made, "AdaptersLoaded")[:2] == ("False", "DownloadFailed")
    assert "no adapter_config.json" in make.condition(made, "Degraded")[2]
    assert not removed(made)


def test_the_job_of_one_that_is_not_wanted_goes(cached: Any) -> None:
    sql, other = jobs_of(cached.plan())
    done = [ended(each, "Complete", SINCE) for each in (sql, other)]
    cached.see(jobs=(*cached.observed.jobs, *done))
    cached.edit({"adapters": ADAPTERS["adapters"][:1]})
    assert removed(cached.plan()) == [other["metadata"]["name"]]


def test_a_few_at_a_time(world: Any, cached: Any) -> None:
    cached.edit({"adapters": [{"name": f"a{n}", "uri": f"org/a{n}"} for n in range(9)]})
    first = jobs_of(cached.plan())
    assert len(first) == 4
    cached.see(jobs=(*cached.observed.jobs, *first))
    assert jobs_of(cached.plan()) == []
    ended_one = ended(first[0], "Complete", SINCE)
    cached.see(jobs=(*cached.observed.jobs[:1], ended_one, *first[1:]))
    assert len(jobs_of(cached.plan())) == 1


def test_no_more_at_a_time_where_new_ones_stand_before_those_that_run(cached: Any) -> None:
    old = [{"name": f"a{n}", "uri": f"org/a{n}"} for n in range(4)]
    cached.edit({"adapters": old})
    running = jobs_of(cached.plan())
    assert len(running) == 4
    cached.see(jobs=(*cached.observed.jobs, *running))
    cached.edit({"adapters": [{"name": "new", "uri": "org/new"}, *old]})
    assert jobs_of(cached.plan()) == []
    ended_one = ended(running[3], "Complete", SINCE)
    cached.see(jobs=(*cached.observed.jobs[:1], *running[:3], ended_one))
    (made,) = jobs_of(cached.plan())
    assert "hf://org/new" in made["spec"]["template"]["spec"]["containers"][0]["args"]


def test_two_names_of_one_uri_are_one_download(cached: Any) -> None:
    cached.edit({"adapters": [{"name": "a", "uri": "org/a"}, {"name": "b", "uri": "hf://org/a"}]})
    assert len(jobs_of(cached.plan())) == 1
