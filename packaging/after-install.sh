#!/bin/sh
# Creates the group "neuron" and the links for tools that expect AWS's commands, then starts or restarts neurond.
# $1 is "configure" (deb) or the number of installed versions (rpm); an upgrade has $2 (deb) or 2 (rpm).
set -e
[ "$1" != abort-upgrade ] && [ "$1" != abort-remove ] && [ "$1" != abort-deconfigure ] || exit 0
if command -v systemd-sysusers >/dev/null; then
    systemd-sysusers neurontools.conf
elif ! getent group neuron >/dev/null; then
    groupadd --system neuron
fi
if command -v systemd-tmpfiles >/dev/null; then systemd-tmpfiles --create neurontools.conf || true; fi
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
if [ "$1" = 2 ] || [ -n "${2:-}" ]; then
    systemctl try-restart neurond.service || true
else
    # The preset of the distribution decides whether neurond starts at boot. It starts now only where it is enabled.
    systemctl --no-reload preset neurond.service || true
    if systemctl --quiet is-enabled neurond.service; then systemctl start --no-block neurond.service || true; fi
fi
