"""Values of vLLM's production-stack."""

from __future__ import annotations

from kvasir.cli.kubectl.convert.conversion import convert_text

VALUES = """
servingEngineSpec:
  runtimeClassName: nvidia
  tolerations: [{key: a, operator: Exists}]
  vllmApiKey: sekret
  modelSpec:
    - name: mistral
      repository: lmcache/vllm-openai
      tag: v0.30.0
      modelURL: mistralai/Mistral-7B-Instruct-v0.2
      replicaCount: 2
      requestCPU: 6
      requestMemory: 16Gi
      requestGPU: 2
      limitMemory: 32Gi
      pvcStorage: 50Gi
      pvcAccessMode: [ReadWriteOnce]
      storageClass: fast
      vllmConfig:
        enablePrefixCaching: false
        maxModelLen: 16384
        dtype: bfloat16
        tensorParallelSize: 2
        gpuMemoryUtilization: "0.95"
        extraArgs: [--disable-log-requests, --max-num-seqs, "64"]
      lmcacheConfig: {enabled: true, cpuOffloadingBufferSize: "30"}
      hf_token: {secretName: hub, secretKey: token}
      envFromSecret: {name: s3}
      env: [{name: A, value: b}]
      nodeSelectorTerms: [{matchExpressions: [{key: gpu, operator: Exists}]}]
      tolerations: [{key: b, operator: Exists}]
      imagePullSecret: pull
      shmSize: 20Gi
      keda: {enabled: true, minReplicaCount: 1, maxReplicaCount: 5, pollingInterval: 15}
    - {name: off, enabled: false, modelURL: a/b}
    - name: local
      modelURL: /data/m
      requestGPU: 1
      requestGPUType: nvidia.com/mig-1g
      hf_token: sekret
routerSpec: {routingLogic: session}
"""


def test_models_of_values() -> None:
    first, second = convert_text(VALUES, "values.yaml", "vllm")
    assert first.document["spec"] == {
        "model": {
            "uri": "hf://mistralai/Mistral-7B-Instruct-v0.2",
            "secretRef": {"name": "hub", "key": "token"},
        },
        "engine": {
            "type": "vllm",
            "image": "lmcache/vllm-openai:v0.30.0",
            "config": {
                "maxModelLen": 16384,
                "dtype": "bfloat16",
                "gpuMemoryUtilization": 0.95,
                "enablePrefixCaching": False,
                "maxNumSeqs": 64,
            },
            "args": ["--disable-log-requests"],
            "env": [{"name": "A", "value": "b"}],
            "envFrom": [{"secretRef": {"name": "s3"}}],
        },
        "resources": {
            "requests": {"cpu": "6", "memory": "16Gi"},
            "limits": {"memory": "32Gi", "nvidia.com/gpu": 2},
        },
        "podTemplate": {
            "tolerations": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}],
            "runtimeClassName": "nvidia",
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}
                        ]
                    }
                }
            },
            "imagePullSecrets": [{"name": "pull"}],
        },
        "cache": {
            "pvc": {"size": "50Gi", "accessModes": ["ReadWriteOnce"], "storageClassName": "fast"}
        },
        "autoscaling": {"minReplicas": 1, "maxReplicas": 5},
        "parallelism": {"tensor": 2},
    }
    assert [sentence.partition(": ")[0] for sentence in first.lost] == [
        "modelSpec[0].keda.pollingInterval",
        "modelSpec[0].lmcacheConfig",
        "modelSpec[0].shmSize",
        "servingEngineSpec.vllmApiKey",
        "routerSpec.routingLogic",
    ]
    assert second.name == "local"
    assert [sentence.partition(": ")[0] for sentence in second.lost] == [
        "modelSpec[2].modelURL",
        "modelSpec[2].requestGPUType",
        "modelSpec[2].hf_token",
    ]
    for draft in (first, second):
        assert "sekret" not in str(draft.document) + str(draft.lost)
