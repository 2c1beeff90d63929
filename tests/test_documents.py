"""What README, CONTRIBUTING and the page on machines name is there: files, tests, imports,
commands.
"""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from workbook.__main__ import make_parser

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    f"data/book/{page}.md" for page in ("using", "claims", "arena", "scale", "elsewhere", "losses")
]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *PAGES]
TOP = (
    "workbook|notebooks|data|tests|examples|environment.yml|pyproject.toml|constraints.txt"
    "|[A-Z]+.md|LICENSE"
)
text = {name: (ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS}


def blocks(name: str, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text[name], re.MULTILINE | re.DOTALL)
    return [block for kind, block in fenced if kind == language]


# it names what has left
@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name != "CHANGELOG.md"])
def test_every_file_that_is_named_exists(name):
    named = re.findall(rf"[`(](?:\./)?((?:{TOP})(?:/[\w./-]*)?)[`)]", text[name])
    named = [
        path for path in named if "NAME" not in path and "NN" not in path and "..." not in path
    ]
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", PAGES)
def test_commands_are_understood(name):
    commands = re.findall(r"^.*-m workbook (\w[^#\n]*)", "\n".join(blocks(name, "")), re.MULTILINE)
    assert commands
    for command in commands:
        args = make_parser().parse_args(shlex.split(command))
        config = getattr(args, "config", "CONFIG")
        assert config == "CONFIG" or (ROOT / config).exists(), config


def test_licence_and_citation_agree_with_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["license"] == project["license"] == "Apache-2.0"
    assert citation["version"] == project["version"]
    assert f"## {project['version']}" in text["CHANGELOG.md"]
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    authors = {
        reference["identifiers"][0]["value"]: [one["family-names"] for one in reference["authors"]]
        for reference in citation["references"]
    }
    assert authors == {
        "arXiv:2605.08666": ["Cheng", "Huang", "Qiu", "Cheng", "Ponti", "Xu", "Titov", "Xu"],
        "arXiv:2604.13088v1": ["Ding", "Zhang", "Wang", "Zeng"],
        "arXiv:2605.16302": ["Ding", "Zhang", "Peng", "Wang", "Zhou", "Zeng"],
    }
