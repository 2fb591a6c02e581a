"""Who this instance is, from the EC2 instance metadata service (version 2: a token first, then the questions).

Asked once, in a thread of its own, with a short patience; without an answer the firmware's word stands. The variables
AWS_EC2_METADATA_SERVICE_ENDPOINT and AWS_EC2_METADATA_DISABLED mean what they mean to AWS's own software.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

ENDPOINT = "http://169.254.169.254"
PATIENCE_SECONDS = 1.0
_MAX_ANSWER_BYTES = 4096
_LIFE_SECONDS = "60"

# Field of the model's Instance, and where the service has it.
_PATHS = {
    "instance_type": "instance-type",
    "instance_id": "instance-id",
    "availability_zone": "placement/availability-zone",
    "availability_zone_id": "placement/availability-zone-id",
    "region": "placement/region",
    "ami_id": "ami-id",
    "instance_name": "tags/instance/Name",
}
_MAC_PATH = "mac"
_SUBNET_PATH = "network/interfaces/macs/{}/subnet-id"


class MetadataService:
    """Asks in the background; `facts` is empty until the answers are there, `warning` tells why there are none."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self.facts: dict[str, str] = {}
        self.warning = ""
        self._endpoint = environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "").rstrip("/") or ENDPOINT
        self.thread: threading.Thread | None = None
        if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true":
            self.thread = threading.Thread(target=self._ask, name="metadata-service", daemon=True)
            self.thread.start()

    def _ask(self) -> None:
        try:
            self.facts = _facts(self._endpoint)
        except (OSError, ValueError) as error:
            cause = getattr(error, "reason", None) or error
            self.warning = f"the instance metadata service at {self._endpoint} does not answer ({cause}); see --imds"
        except Exception as error:  # an answer that is no HTTP
            self.warning = f"the instance metadata service at {self._endpoint} can't be understood ({error})"


def _facts(endpoint: str) -> dict[str, str]:
    """The answers; OSError when the service can't be reached or refuses to give a token."""
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": _LIFE_SECONDS}
    token = _request(f"{endpoint}/latest/api/token", headers, method="PUT")
    facts = {}
    for field, path in _PATHS.items():
        answer = _answer(endpoint, path, token)
        if answer:
            facts[field] = answer
    mac = _answer(endpoint, _MAC_PATH, token)
    if mac and (subnet := _answer(endpoint, _SUBNET_PATH.format(mac), token)):
        facts["subnet_id"] = subnet
    return facts


def _answer(endpoint: str, path: str, token: str) -> str:
    """One answer; empty where the service has none, as for tags that are not opened to it."""
    try:
        return _request(f"{endpoint}/latest/meta-data/{path}", {"X-aws-ec2-metadata-token": token})
    except (OSError, ValueError):
        return ""


def _request(url: str, headers: dict[str, str], method: str = "GET") -> str:
    import urllib.request

    if not url.startswith(("http://", "https://")):
        raise ValueError("not an http address")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # link-local: never through a proxy
    request = urllib.request.Request(url, headers=headers, method=method)  # noqa: S310 - checked above
    with opener.open(request, timeout=PATIENCE_SECONDS) as reply:
        text: str = reply.read(_MAX_ANSWER_BYTES).decode("ascii", "replace").strip()
    if not text.isprintable() or len(text) > 256:
        raise ValueError("an answer that is no name")
    return text
