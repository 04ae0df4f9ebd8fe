#!/usr/bin/env bash
# A kind cluster with our images and fake GPUs; needs docker, kind and kubectl, no root.
# `kind delete cluster --name kvasir` removes it.
set -euo pipefail
cd "$(dirname "$0")/../../.."
for tool in docker kind kubectl; do
  command -v $tool > /dev/null || { echo "kind-up: install $tool first" >&2; exit 1; }
done
gpus=${FAKE_GPUS:-4}
# `docker save`, by which kind loads images, leaves out the attestations that their index names, and
# containerd takes no image that is not all there: kubernetes-sigs/kind#3795.
export BUILDX_NO_DEFAULT_ATTESTATIONS=1

clusters=$(kind get clusters)
grep -qx kvasir <<< "$clusters" || kind create cluster --config e2e/cluster/kind/kind.yaml --wait 180s
for name in engine-sim downloader router operator; do
  docker build -q -f "images/$name.Dockerfile" -t "localhost/kvasir/$name:dev" .
  kind load docker-image --name kvasir "localhost/kvasir/$name:dev"
done
# Extended resources that no device plugin manages are what the node's status says they are.
nodes=$(kind get nodes --name kvasir)
for node in $(grep worker <<< "$nodes"); do
  kubectl --context kind-kvasir patch node "$node" --subresource=status --type=merge \
    -p "{\"status\":{\"capacity\":{\"nvidia.com/gpu\":\"$gpus\"}}}"
done
cat << 'END'
up: kubectl --context kind-kvasir get nodes
next: helm --kube-context kind-kvasir install kvasir charts/kvasir -n kvasir --create-namespace --wait \
  --set global.imageRegistry=localhost/kvasir --set operator.image.tag=dev --set router.image.tag=dev \
  --set engine.images.sim.tag=dev --set downloads.image.tag=dev --set test.device=sim
END
