#!/usr/bin/env bash
# A kind cluster with our images and fake GPUs; needs docker, kind and kubectl, no root.
# `kind delete cluster --name kvasir` removes it.
set -euo pipefail
cd "$(dirname "$0")/../../.."
for tool in docker kind kubectl; do
  command -v $tool > /dev/null || { echo "kind-up: install $tool first" >&2; exit 1; }
done
gpus=${FAKE_GPUS:-4}

kind get clusters | grep -qx kvasir || kind create cluster --config e2e/cluster/kind/kind.yaml
for name in engine-sim router operator; do
  docker build -q -f "images/$name.Dockerfile" -t "localhost/kvasir/$name:dev" .
  kind load docker-image --name kvasir "localhost/kvasir/$name:dev"
done
# Extended resources that no device plugin manages are what the node's status says they are.
for node in $(kind get nodes --name kvasir | grep worker); do
  kubectl --context kind-kvasir patch node "$node" --subresource=status --type=merge \
    -p "{\"status\":{\"capacity\":{\"nvidia.com/gpu\":\"$gpus\"}}}"
done
echo "up: kubectl --context kind-kvasir get nodes"
