from __future__ import annotations

from pathlib import Path

import pytest

from neurontools.cli.local_devices import has_devices, read_devices
from neurontools.errors import UserError


@pytest.mark.parametrize("sign", ["dev/neuron0", "sys/class/neuron_device/neuron0"])
def test_a_device_of_the_driver_is_seen(tmp_path: Path, sign: str) -> None:
    assert not has_devices(str(tmp_path))
    path = tmp_path / sign
    path.parent.mkdir(parents=True)
    path.touch()
    assert has_devices(str(tmp_path))


def test_reading_them_is_not_there_yet() -> None:
    with pytest.raises(UserError, match="reading devices directly is not there yet; start neurond") as raised:
        read_devices()
    assert raised.value.exit_code == 12
