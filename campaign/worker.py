"""`python -m campaign.worker`: a process that holds NeuronCores and executes, like a training.

It prints its cores, then reads commands, one a line. A number stands for that many executions; `fork` starts an idle
child. Errors go to standard error and the exit code.
"""

from __future__ import annotations

import os
import signal
import sys

from neurontools.runtime import CoresUnavailable, Reporter


def main() -> int:
    """Runs until standard input ends."""
    try:
        reporter = Reporter.attach()
    except CoresUnavailable:
        print("refused", flush=True)
        return 0
    model = reporter.load_model("campaign")
    print(*(core.neuroncore_index for core in reporter.cores), flush=True)
    for line in sys.stdin:
        if line.strip() == "fork":
            if os.fork() == 0:
                signal.alarm(120)  # ends the child if nobody else does
                while True:
                    signal.pause()
        else:
            for _ in range(int(line)):
                with model.execution(flop=1000):
                    pass
        print("done", flush=True)
    reporter.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
