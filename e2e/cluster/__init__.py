"""A real Kubernetes for tests, started from nothing by this package and gone when the tests are.

Two tiers. The control-plane tier is etcd, the API server, the controller manager and the scheduler with fake (kwok)
nodes, on which pods become Ready without running; it needs no root. The nodes tier adds two real nodes (containerd,
kubelet, kube-proxy), DNS, volumes and network policies; it needs root and Linux.

Reading order: `programs` builds what runs, `runs` owns the folder of one cluster and its end, `network` and
`processes` say where and how a program runs, `control_plane`, `nodes`, `dns`, `volumes`, `policies` and `kwok` are the
parts, `local` puts them together, `clusters` is what a test sees, `fixtures` is how pytest hands it out.
"""
