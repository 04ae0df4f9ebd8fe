#!/usr/bin/env bash
# Writes go.mod and go.sum of the modules anew, for new versions:
#   KUBERNETES=1.34.2 OLDEST=1.32.13 NEWEST=1.37.2 COREDNS=v1.12.4 HELM=v3.19.0 KWOK=v0.8.0 e2e/cluster/go/update.sh
# Kubernetes publishes its staging modules as v0.X while its own go.mod replaces them by
# directories, which count only in the main module; so this module repeats the replacements. etcd is
# the version that Kubernetes' own client is of.
set -euo pipefail
cd "$(dirname "$0")"
export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS=
: "${KUBERNETES:=1.34.2}" "${OLDEST:=1.32.13}" "${NEWEST:=1.37.2}" "${COREDNS:=v1.12.4}" "${HELM:=v3.19.0}"

# With the oldest Go that Kubernetes itself asks for, not the one that happens to be here.
fresh() {
  rm -f "$1/go.mod" "$1/go.sum"
  (cd "$1" && go mod init "kvasir.dev/e2e/$1" && go mod edit -go=1.24.0)
}

# Require Kubernetes $1 in the module here, with its own replacements: each staging module at the same
# patch version, or the last one before it that the Go proxy has.
kubernetes() {
  local module version minor=${1#1.} file
  minor=${minor%.*}
  file=$(go mod download -json "k8s.io/kubernetes@v$1" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
  for module in $(sed -n 's|.*\(k8s.io/[a-z-]*\) => ./staging.*|\1|p' "$file"); do
    version=$({ go list -m -versions "$module" | tr ' ' '\n' | grep "^v0\.$minor\.[0-9]*$"; echo "v0.${1#1.}.z"; } |
      sort -V | sed -n '/\.z$/q;p' | tail -1)
    [ -z "$version" ] || go mod edit "-replace=$module=$module@$version"
  done
  go get "k8s.io/kubernetes@v$1"
}

fresh kube
(
  cd kube
  kubernetes "$KUBERNETES"
  go get "go.etcd.io/etcd/server/v3@$(go list -m -f '{{.Version}}' go.etcd.io/etcd/client/v3)"
  go mod tidy
)
# Two more API servers, of one main.go: go.mod is the newest one's, oldest.mod the oldest one's.
fresh apiserver
(
  cd apiserver
  rm -f oldest.*
  kubernetes "$OLDEST"
  go mod tidy
  mv go.mod oldest.mod
  mv go.sum oldest.sum
)
fresh apiserver
(cd apiserver && kubernetes "$NEWEST" && go mod tidy)
fresh coredns
(cd coredns && go get "github.com/coredns/coredns@$COREDNS" && go mod tidy)
fresh helm
(cd helm && go get -tool "helm.sh/helm/v3/cmd/helm@$HELM" && go mod tidy)
# kwok itself asks for Go 1.26; only a benchmark needs it.
fresh kwok
(cd kwok && go get -tool "sigs.k8s.io/kwok/cmd/kwok@$KWOK" && go mod tidy)
