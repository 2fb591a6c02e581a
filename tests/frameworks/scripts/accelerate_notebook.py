"""What a cell of a notebook does: accelerate's launcher starts two workers by forking the session."""

import socket
import sys

from accelerate import notebook_launcher
from accelerate_loop import main

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = str(probe.getsockname()[1])
notebook_launcher(main, (sys.argv[1],), num_processes=2, use_port=port)
