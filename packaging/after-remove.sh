#!/bin/sh
# Removes our links in AWS's directory; purging a deb also removes the state of neurond. The group stays, since files may
# belong to it.
set -e
case $1 in remove | purge | 0) ;; *) exit 0 ;; esac
for name in neuron-ls neuron-top neuron-monitor neuron-monitor-prometheus.py; do
    link=/opt/aws/neuron/bin/$name
    if [ -L "$link" ] && [ "$(readlink "$link")" = "/usr/bin/$name" ]; then rm -f "$link"; fi
done
rmdir --ignore-fail-on-non-empty -p /opt/aws/neuron/bin 2>/dev/null || true
if [ "$1" = purge ]; then rm -rf /var/lib/neurond /run/neurond; fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
