"""A lighthouse of torchft for two replicas; prints its address and serves until its standard input ends."""

import sys

from torchft._torchft import LighthouseServer

lighthouse = LighthouseServer(bind="[::]:0", min_replicas=2)
print(lighthouse.address(), flush=True)
sys.stdin.read()
lighthouse.shutdown()
