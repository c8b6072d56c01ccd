"""The process that outlives a test run by a few seconds: takes its cluster down once the run is gone.

Its standard input is a pipe whose other end only the test run holds; it is never written to, so reading returns
exactly when that process has ended, in whatever way.
"""

import os
import sys

from .runs import Run, take_down

if __name__ == "__main__":
    os.read(0, 1)
    take_down(Run(int(sys.argv[1])))
