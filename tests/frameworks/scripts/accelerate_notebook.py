"""What a cell of a notebook does: accelerate's launcher starts two workers by forking the session."""

import os
import sys

from accelerate import notebook_launcher
from accelerate_loop import main

notebook_launcher(main, (sys.argv[1],), num_processes=2, use_port=os.environ["PORT"])
