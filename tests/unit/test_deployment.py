"""Dockerfile, compose file and service units, checked by what works without an engine or an init system."""

import plistlib
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "worker_config" / "systemd").glob("*.service"))
PLISTS = sorted((ROOT / "worker_config" / "launchd").glob("*.plist"))
PACKAGES = ("exo_celery", "web", "worker_config")
INSTALLED = "/opt/exo_celery/.venv/bin/"


def dockerfile() -> list[list[str]]:
    """Return the instructions, comments left out, continued lines joined."""
    text = (ROOT / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    return [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def compose() -> dict[str, dict[str, dict[str, object]]]:
    return yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())


def test_compose_passes_the_schema() -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    told = subprocess.run([*check, ROOT / "docker" / "compose.yaml"], capture_output=True, text=True)
    assert told.returncode == 0, told.stdout


def test_compose_has_every_role_and_looks_after_it() -> None:
    services = compose()["services"]
    assert set(services) == {"redis", "beat", "web", "node-1", "node-2"}
    assert all("healthcheck" in services[name] for name in ("redis", "web", "node-1", "node-2"))
    assert "yes" in services["redis"]["command"]  # AOF
    assert all(name in compose()["volumes"] for name in ("redis", "node-1", "node-2"))
    assert all(str(port).startswith("127.0.0.1:") for one in services.values() for port in one.get("ports", []))


def test_the_image_does_not_run_as_root_and_installs_from_the_locks() -> None:
    users = [words[1] for words in dockerfile() if words[0] == "USER"]
    assert users
    assert users[-1] not in ("root", "0")
    installs = [" ".join(words) for words in dockerfile() if words[0] == "RUN" and "install" in words]
    assert all("--require-hashes" in run or "--no-deps" in run or "apt-get" in run for run in installs)


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    kept = [line.removeprefix("!").rstrip("/") for line in (ROOT / ".dockerignore").read_text().splitlines()]
    for words in dockerfile():
        if words[0] != "COPY" or words[1].startswith("--from"):
            continue
        for source in words[1:-1]:
            assert (ROOT / source).exists()
            assert source.split("/")[0] in kept


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_units_verify(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace(INSTALLED, f"{Path(sys.executable).parent}/"))
    told = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
    complaints = [line for line in told.stderr.splitlines() if unit.name in line]
    assert complaints == []
    assert told.returncode == 0, told.stderr


@pytest.mark.parametrize("plist", PLISTS, ids=lambda path: path.stem)
def test_plists_are_valid(plist: Path) -> None:
    facts = plistlib.loads(plist.read_bytes())
    assert facts["Label"] == plist.stem
    assert facts["KeepAlive"] is True
    assert facts["ProgramArguments"][0].startswith(INSTALLED)


@pytest.mark.parametrize("file", [*UNITS, *PLISTS], ids=lambda path: path.name)
def test_units_start_commands_that_exist(file: Path) -> None:
    names = re.findall(re.escape(INSTALLED) + r"([a-z-]+)", file.read_text())
    assert names
    assert all((Path(sys.executable).parent / name).exists() for name in names)


def test_the_wheel_has_all_that_is_no_python_too(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    wanted = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    suffixes = {Path(name).suffix for name in wanted}
    assert {".lua", ".html", ".css", ".js", ".svg", ".service", ".plist", ".example"} <= suffixes
    assert "worker_config/gunicorn.conf.py" in wanted
    assert wanted <= held
