"""`python -m e2e.cluster build|up|down|status|clean`: a cluster by hand, and what is left of others."""

import argparse
import sys

from . import local, runs, tiers
from .errors import ClusterError
from .progress import say
from .tiers import Tier


def _build(arguments: argparse.Namespace) -> None:
    tiers.require(arguments.tier)


def _up(arguments: argparse.Namespace) -> None:
    cluster = local.start(arguments.tier, fake_nodes=arguments.fake_nodes, keep=True)
    sys.stdout.write(f"export KUBECONFIG={cluster.kubeconfig}\n")


def _down(arguments: argparse.Namespace) -> None:
    kept = [run for run in runs.known() if run.is_kept and arguments.slot in (None, run.slot)]
    if len(kept) > 1 and not arguments.all:
        raise ClusterError(f"slots {[run.slot for run in kept]} are up; say which with --slot, or --all")
    for run in kept:
        runs.take_down(run)


def _status(_: argparse.Namespace) -> None:
    for run in runs.known():
        parts = runs.leftovers(run)
        owner = "kept" if run.is_kept else "owned by a running process" if runs.is_owned(run) else "stale"
        sys.stdout.write(f"slot {run.slot}: {f'{owner}, {run.keys}/admin.kubeconfig' if parts else 'down'}\n")
        sys.stdout.writelines(f"  {part}\n" for part in parts)


def _clean(_: argparse.Namespace) -> None:
    runs.clean()


def main() -> int:
    """Run one command; 1 when it could not be done."""
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for name, what, help_text in (
        ("build", _build, "install packages and build programs for a tier"),
        ("up", _up, "start a cluster that stays, and print its KUBECONFIG"),
        ("down", _down, "end the clusters that `up` started"),
        ("status", _status, "what runs, by slot"),
        ("clean", _clean, "end clusters whose owner is dead"),
    ):
        command = commands.add_parser(name, help=help_text)
        command.set_defaults(run=what)
        if name in ("build", "up"):
            command.add_argument("--tier", type=Tier, choices=list(Tier), default=Tier.CONTROL_PLANE)
        if name == "up":
            command.add_argument("--fake-nodes", type=int, default=3)
        if name == "down":
            command.add_argument("--slot", type=int)
            command.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except ClusterError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
