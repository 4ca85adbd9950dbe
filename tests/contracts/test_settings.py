"""The table of the settings, and the schema of their file."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
import yaml

from workbench import config

ROOT = Path(__file__).parents[2]
settings = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "_ext" / "settings_table.py")))


def flat(values, prefix=""):
    for name, value in values.items():
        yield from flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(f"{prefix}{name}", value)]


def test_the_table_has_every_setting_with_its_default_and_a_description():
    file = Path(config.__file__).with_name("workbench.yaml").read_text(encoding="utf-8")

    assert [(each.name, each.default) for each in settings.settings()] == [*flat(yaml.safe_load(file)["workbench"])]
    assert all(each.help for each in settings.settings())


def test_the_schema_of_the_documentation_is_up_to_date():
    shipped = ROOT / "docs" / "reference" / "settings.schema.json"
    assert json.loads(shipped.read_text(encoding="utf-8")) == settings.schema(), (
        f"python docs/_ext/settings_table.py > {shipped.relative_to(ROOT)}"
    )


@pytest.mark.parametrize(
    "text",
    [
        Path(config.__file__).with_name("workbench.yaml").read_text(encoding="utf-8"),
        "workbench: {idle-timeout: 90, scheduler: slurm, world: {restarts: 0}, mpi: {srun-args: [-v]}, interface: ib0}",
        "distributed: {worker: {memory: {target: 0.6}}}",
    ],
    ids=["defaults", "changes", "of Dask"],
)
def test_a_file_of_settings_is_valid(text):
    jsonschema.validate(yaml.safe_load(text), settings.schema())


@pytest.mark.parametrize(
    "text",
    [
        "workbench: {idle-timout: 90 s}",
        "workbench: {world: {restart: 1}}",
        "workbench: {scheduler: lsf}",
        "workbench: {mpi: {launcher: prun}}",
        "workbench: {world: {restarts: often}}",
        "workbench: {mpi: {srun-args: -v}}",
        "workbench: {mpi: {guard: 1}}",
    ],
)
def test_a_wrong_name_or_value_is_found(text):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), settings.schema())
