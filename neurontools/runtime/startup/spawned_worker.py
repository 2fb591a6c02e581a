"""The module that processes of multiprocessing import first, because they import the script again.

They take NeuronCores at their first use of the device. With the start method spawn, each process imports this module;
with forkserver, the server imports it for all of them.
"""

from __future__ import annotations

import os

from neurontools.runtime.launch import import_hook

import_hook.install_finder(os.environ)
import_hook.is_spawned_worker = True
