"""A real Kubernetes on one machine, without Docker and without a registry.

Two tiers: `control_plane` (etcd, API server, controller manager; no root needed) and `cluster` (the
same with scheduler, DNS and nodes that run containers). `python -m harness` is the command line.
"""
