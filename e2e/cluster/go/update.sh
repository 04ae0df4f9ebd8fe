#!/usr/bin/env bash
# Writes go.mod and go.sum of the modules anew, for new versions:
#   KUBERNETES=1.34.2 COREDNS=v1.12.4 HELM=v3.19.0 e2e/cluster/go/update.sh
# Kubernetes publishes its staging modules as v0.X while its own go.mod replaces them by
# directories, which count only in the main module; so this module repeats the replacements. etcd is
# the version that Kubernetes' own client is of.
set -euo pipefail
cd "$(dirname "$0")"
export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS=
: "${KUBERNETES:=1.34.2}" "${COREDNS:=v1.12.4}" "${HELM:=v3.19.0}"

# With the oldest Go that Kubernetes itself asks for, not the one that happens to be here.
fresh() {
  rm -f "$1/go.mod" "$1/go.sum"
  (cd "$1" && go mod init "kvasir.dev/e2e/$1" && go mod edit -go=1.24.0)
}

fresh kube
(
  cd kube
  for module in api apiextensions-apiserver apimachinery apiserver cli-runtime client-go \
    cloud-provider cluster-bootstrap code-generator component-base component-helpers \
    controller-manager cri-api cri-client csi-translation-lib dynamic-resource-allocation \
    endpointslice externaljwt kms kube-aggregator kube-controller-manager kube-proxy \
    kube-scheduler kubectl kubelet metrics mount-utils pod-security-admission sample-apiserver \
    sample-cli-plugin sample-controller; do
    go mod edit "-replace=k8s.io/$module=k8s.io/$module@v0.${KUBERNETES#1.}"
  done
  go get "k8s.io/kubernetes@v$KUBERNETES"
  go get "go.etcd.io/etcd/server/v3@$(go list -m -f '{{.Version}}' go.etcd.io/etcd/client/v3)"
  go mod tidy
)
fresh coredns
(cd coredns && go get "github.com/coredns/coredns@$COREDNS" && go mod tidy)
fresh helm
(cd helm && go get -tool "helm.sh/helm/v3/cmd/helm@$HELM" && go mod tidy)
