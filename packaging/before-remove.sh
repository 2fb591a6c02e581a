#!/bin/sh
# Stops neurond before its files are removed. An upgrade ($1 is "upgrade" or 1) leaves it running until the restart.
set -e
if [ "$1" = remove ] || [ "$1" = 0 ]; then
    if [ -d /run/systemd/system ]; then systemctl --no-reload disable --now neurond.service || true; fi
fi
