#!/usr/bin/env bash
# Installs the Debian packages that a full cluster needs, as root. The control plane alone
# (`make cluster-build` and the tests that use it) needs none of them.
#   containerd runc containernetworking-plugins   what nodes run
#   iptables conntrack ebtables ethtool socat     what kubelet and kube-proxy call
#   buildah debootstrap                           what images are made with
#   iproute2 procps openssl                       the harness itself
#   prometheus                                    promtool, which judges alerts
#   slowhttptest nghttp2-client                   what e2e/attack_suite.py attacks with
set -euo pipefail
packages=(containerd runc containernetworking-plugins iptables conntrack ebtables ethtool socat
  buildah debootstrap iproute2 procps openssl ca-certificates prometheus
  slowhttptest nghttp2-client)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2> /dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ]; then
  echo "packages: run as root: apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
apt-get update -q
DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
