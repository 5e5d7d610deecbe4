"""Several machines on one: network namespaces with an address each, joined by a bridge in a namespace of its own.

Linux and root only. Everything is named after this process, and removed at the end.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

FETCH = """
import json, sys, urllib.error, urllib.request
method, url, body = sys.argv[1:4]
request = urllib.request.Request(url, body.encode() or None, {"content-type": "application/json"}, method=method)
try:
    with urllib.request.urlopen(request, timeout=60) as answer:
        print(json.dumps([answer.status, json.load(answer)]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, json.load(error)]))
"""


def can_make_hosts() -> bool:
    """Tell whether this process may make network namespaces."""
    return sys.platform == "linux" and os.geteuid() == 0 and shutil.which("ip") is not None


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Network:
    """A switch, and hosts plugged into it."""

    def __init__(self, count: int) -> None:
        self.prefix = f"exo{os.getpid() % 100000}"
        self.switch = f"{self.prefix}-sw"
        self.hosts: list[Host] = []
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "br0", "up")
        for number in range(1, count + 1):
            self.hosts.append(Host(self, number))

    def remove(self) -> None:
        for name in (self.switch, *(host.name for host in self.hosts)):
            subprocess.run(["ip", "netns", "delete", name], check=False)


class Host:
    """One machine: an address, a cable, and the processes that a test starts on it."""

    def __init__(self, network: Network, number: int) -> None:
        self.network = network
        self.name = f"{network.prefix}-{number}"
        self.address = f"10.77.0.{number}"
        self.port = f"p{number}"
        ip("netns", "add", self.name)
        ip("-n", self.name, "link", "set", "lo", "up")
        ip("-n", self.name, "link", "add", "eth0", "type", "veth", "peer", "name", self.port, "netns", network.switch)
        ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.name, "link", "set", "eth0", "up")
        ip("-n", network.switch, "link", "set", self.port, "master", "br0", "up")

    def start(self, argv: list[str], log: Path, **environ: str) -> "subprocess.Popen[bytes]":
        """Start a process on this host, with an environment of its own."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("EXO_", "CELERY_"))}
        with log.open("ab") as out:
            command = ["ip", "netns", "exec", self.name, *argv]
            return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=kept | environ)

    def fetch(self, method: str, url: str, body: Any = None) -> tuple[int, Any]:
        """Send a request from this host and return status and JSON."""
        text = "" if body is None else json.dumps(body)
        argv = ["ip", "netns", "exec", self.name, sys.executable, "-c", FETCH, method, url, text]
        status, answer = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
        return status, answer

    def pull_cable(self) -> None:
        ip("-n", self.network.switch, "link", "set", self.port, "down")

    def plug_in(self) -> None:
        ip("-n", self.network.switch, "link", "set", self.port, "up")
