"""What can go wrong with a test cluster.

ClusterError
├── TierUnavailable    this machine cannot run the tier; says what is missing and how to get it
├── ProgramFailed      a command or a long-running program failed; carries the end of its output
└── NotInTime          a condition did not become true within its limit
"""


class ClusterError(Exception):
    """Root of this package's errors."""


class TierUnavailable(ClusterError):
    """This machine cannot run a tier."""

    def __init__(self, tier: str, missing: str, remedy: str) -> None:
        super().__init__(f"the {tier} tier cannot run here: {missing}. To get it: {remedy}")
        self.tier = tier
        self.missing = missing
        self.remedy = remedy


class ProgramFailed(ClusterError):
    """A program ended with an error, or a long-running one ended at all."""

    def __init__(self, command: str, output: str, code: int | None = None) -> None:
        ended = "ended" if code is None else f"ended with code {code}"
        super().__init__(f"{command!r} {ended}:\n{output.strip()}")
        self.output = output
        self.code = code


class NotInTime(ClusterError):
    """A condition did not become true in time."""
