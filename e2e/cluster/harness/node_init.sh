#!/usr/bin/env bash
# Process 1 of a node, in mount, pid, network and host-name namespaces of its own: makes the
# node's view of the machine, then keeps its services running. Whatever the node runs is below it,
# so a SIGKILL to it is a power loss. What it needs comes in the environment: NODE, DIRECTORY,
# ADDRESS, HOST_ROUTES ("CIDR GATEWAY" pairs), SERVICE_CIDR, KUBECONFIG_FILE, KUBE, FAKEGPU, LOG.
set -euo pipefail

share() { mkdir -p "$1" "$2"; mount --bind "$1" "$2"; }

# Shows `$2` in place of the file `$1`, on this node only.
cover() {
  local copy
  copy=$DIRECTORY/covered-$(basename "$1")
  printf '%s\n' "$2" > "$copy"
  mount --bind "$copy" "$1"
}

make_view() {
  hostname "$NODE"
  mount --make-rprivate /
  mount -t proc proc /proc
  # A sysfs of the new network namespace, with the cgroups in it. While private: a lazy umount
  # below a shared mount would take the copies too.
  mkdir -p "$DIRECTORY/cgroup"
  mount --rbind /sys/fs/cgroup "$DIRECTORY/cgroup"
  mount -t sysfs sysfs /sys
  mount --rbind "$DIRECTORY/cgroup" /sys/fs/cgroup
  umount -l "$DIRECTORY/cgroup"
  mount --make-rshared /
  mount -t tmpfs -o mode=755 tmpfs /run
  mkdir -p /run/netns /run/lock /run/containerd
  share "$DIRECTORY/var/lib/kubelet" /var/lib/kubelet
  share "$DIRECTORY/var/lib/cni" /var/lib/cni
  share "$DIRECTORY/var/log" /var/log
  # The kubelet writes these settings of the whole machine; show it what it wants to see.
  cover /proc/sys/vm/overcommit_memory 1
  cover /proc/sys/kernel/panic 10
  cover /proc/sys/kernel/panic_on_oops 1
  # Every start is a reboot.
  cover /proc/sys/kernel/random/boot_id "$(cat /proc/sys/kernel/random/uuid)"
  cover /etc/resolv.conf ""
}

join_network() {
  ip link set lo up
  until ip link show eth0 > /dev/null 2>&1; do sleep 0.02; done
  ip address add "$ADDRESS/24" dev eth0
  ip link set eth0 up
  # So that connections made on the node itself reach kube-proxy's rules.
  ip route add "$SERVICE_CIDR" dev eth0
  # Nothing leaves: pods get "no route to host" at once.
  ip route add unreachable default
  printf '%s' "$HOST_ROUTES" | while read -r cidr gateway; do
    ip route add "$cidr" via "$gateway"
  done
  sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1
}

keep() {
  local log=$LOG/$NODE-$1.log
  shift
  while :; do
    "$@" >> "$log" 2>&1 < /dev/null || true
    echo "== ended, starting again" >> "$log"
    sleep 1
  done
}

make_view
join_network
keep containerd containerd --config "$DIRECTORY/containerd.toml" &
until [ -S /run/containerd/containerd.sock ]; do sleep 0.05; done
keep kubelet "$KUBE" kubelet --config="$DIRECTORY/kubelet.yaml" --kubeconfig="$KUBECONFIG_FILE" \
  --hostname-override="$NODE" --node-ip="$ADDRESS" --v=2 &
keep kube-proxy "$KUBE" kube-proxy --config="$DIRECTORY/kube-proxy.yaml" --v=1 &
FAKE_GPU_BAD=$DIRECTORY/bad-gpus keep fakegpu "$FAKEGPU" &
while :; do wait || true; sleep 1; done
