"""Bringing up a whole cluster on this machine."""

from time import monotonic

from . import control_plane, dns, kwok, nodes, policies, runs, tiers, volumes
from .clusters import LocalCluster
from .progress import say
from .tiers import Tier

NODES = 2


def start(tier: Tier, *, fake_nodes: int = 3, keep: bool = False) -> LocalCluster:
    """Start a cluster and return when all of it is ready.

    It ends with `take_down`, or when this process ends in whatever way; with `keep` it stays until it is taken down
    on the command line.

    Raises:
        TierUnavailable: this machine cannot run the tier.
        ProgramFailed, NotInTime: a part did not start; what was started is gone again, its logs are kept.
    """
    tiers.require(tier)
    began = monotonic()
    claim = runs.claim()
    run = claim.run
    try:
        if keep:
            claim.keep()
        else:
            claim.watch()
        if not run.is_rootless:
            run.groups.create([])
            run.namespace.create()
        plane = control_plane.start(run)
        cluster = LocalCluster(claim, plane, tier)
        if tier is Tier.NODES:
            nodes.start(plane, NODES)
            dns.install(plane)
            volumes.install(plane)
            policies.start(plane)
        kwok.start(plane, fake_nodes, tainted=tier is Tier.NODES)
        if tier is Tier.NODES:
            dns.until_ready(plane)
            policies.until_ready(plane)
        run.processes().require_all()
    except BaseException:
        (run.folder / "kept").unlink(missing_ok=True)
        claim.release()
        raise
    say(f"slot {run.slot}: Kubernetes {tier} tier is up at {plane.server}: {monotonic() - began:.1f} s")
    return cluster
