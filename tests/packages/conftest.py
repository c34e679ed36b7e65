"""The tested package, made once, and its unpacked files."""

import sys
from pathlib import Path

import pytest

from tools import BINARY, PROJECT, Package, need, run


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    need("dpkg-deb", "dpkg-shlibdeps", "strip")
    out = tmp_path_factory.mktemp("package")
    words = ["deb", "--fast", "--binary", BINARY, "--out", out]
    [path] = [Path(line) for line in run(sys.executable, PROJECT / "packaging/build", *words).splitlines()]
    run("dpkg-deb", "-R", path, out / "root")
    control = (out / "root/DEBIAN").rename(out / "DEBIAN")
    return Package(path, out / "root", control)
