"""Each page of docs/migrate, worked through: the old limiter and tidegate beside it, the comparison, the switch, the way back."""

import importlib.metadata
import subprocess

import pytest

from conftest import ROOT, need
from reader import agrees, blocks, commands

PAGES = ROOT / "docs/migrate"


def work_through(reader, name, **needs):
    need(programs=("curl", *needs.pop("programs", ())), **needs)
    assert reader.read((PAGES / name).read_text()) > 15


def speaks_of(name, *distributions):
    """The page says of which versions it speaks: those that it is tried with."""
    page = (PAGES / name).read_text()
    assert all(f"{each} {importlib.metadata.version(each)}" in page for each in distributions)


def test_flask_limiter(reader):
    work_through(reader, "flask-limiter.md", modules=["flask_limiter", "gunicorn"])
    speaks_of("flask-limiter.md", "Flask-Limiter", "limits")


def test_slowapi(reader):
    work_through(reader, "slowapi.md", modules=["slowapi", "fastapi", "uvicorn"])
    speaks_of("slowapi.md", "slowapi", "limits")


def test_django_ratelimit(reader):
    work_through(reader, "django-ratelimit.md", modules=["django_ratelimit", "gunicorn"])
    speaks_of("django-ratelimit.md", "django-ratelimit")


def test_rack_attack(reader):
    work_through(reader, "rack-attack.md", programs=["ruby", "puma"], libraries=["rack/attack", "active_support"])
    command = ["ruby", "-r", "rack/attack/version", "-e", "print Rack::Attack::VERSION"]
    version = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"rack-attack {version}" in (PAGES / "rack-attack.md").read_text()
