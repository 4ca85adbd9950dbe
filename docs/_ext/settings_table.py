"""The settings with their descriptions, from the file of the defaults, and the JSON schema of a file of settings.

``python docs/_ext/settings_table.py`` prints the schema, which is ``docs/reference/settings.schema.json``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from workbench import config

_LINE = re.compile(r"^(?P<indent> *)(?P<name>[\w-]+):(?: +(?P<value>[^#]*?))? *(?:# *(?P<comment>.*))?$")
_TIME = re.compile(r"\d+ (?:s|(?:minute|hour|day)s?)$")
_SIZE = re.compile(r"\d+ [KMG]iB$")


@dataclass(frozen=True)
class Setting:
    """One setting."""

    name: str
    """Name below ``workbench``, for example ``world.restarts``."""
    text: str
    """The default as it is in the file."""
    help: str
    """The description."""

    @property
    def default(self) -> Any:
        """The default."""
        return yaml.safe_load(self.text)

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the value."""
        described = {"description": f"{self.help[:1].upper()}{self.help[1:]}.", "default": self.default}
        if self.name in config.CHOICES:
            return described | {"enum": [*config.CHOICES[self.name]]}
        if _TIME.match(self.text):
            return described | {"type": ["string", "number"], "examples": ["90 s", "5 minutes", "2 hours"]}
        if _SIZE.match(self.text):
            return described | {"type": ["string", "integer"], "examples": ["256 KiB", "64 MiB"]}
        kinds = {bool: "boolean", int: "integer", str: "string"}
        if self.default is None:
            return described | {"type": ["string", "null"]}
        if isinstance(self.default, list):
            return described | {"type": "array", "items": {"type": "string"}}
        return described | {"type": kinds[type(self.default)]}


def settings() -> list[Setting]:
    """Return all settings in the order of the file."""
    found: list[Setting] = []
    group, column = "", -1
    file = Path(config.__file__).with_name("workbench.yaml")
    for line in file.read_text(encoding="utf-8").splitlines()[1:]:
        if found and column > 0 and line.strip().startswith("#") and line.index("#") == column:
            last = found.pop()
            found.append(Setting(last.name, last.text, f"{last.help} {line.strip('# ')}"))
        elif (match := _LINE.match(line)) and len(match["indent"]) in {2, 4}:
            group = group if len(match["indent"]) == 4 else ""
            column = line.find("#")
            if match["value"]:
                found.append(Setting(f"{group}{match['name']}", match["value"], match["comment"] or ""))
            else:
                group = f"{match['name']}."
    return found


def schema() -> dict[str, Any]:
    """Return the JSON schema of ``workbench.yaml``, which an editor can use."""

    def group(title: str, properties: dict[str, Any]) -> dict[str, Any]:
        return {"type": "object", "title": title, "additionalProperties": False, "properties": properties}

    properties: dict[str, Any] = {}
    for setting in settings():
        outer, _, inner = setting.name.rpartition(".")
        place = properties.setdefault(outer, group(f"workbench.{outer}", {}))["properties"] if outer else properties
        place[inner] = setting.schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Settings of the MPI Workbench {config.__version__}",
        "type": "object",
        "properties": {"workbench": group("workbench", properties)},
    }


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))  # noqa: T201  (the output of this program)
