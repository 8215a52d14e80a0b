"""Prints what the tests need beside the package: its extra called test."""

import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"

if __name__ == "__main__":
    print(*tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]["test"])
