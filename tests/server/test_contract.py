"""What the server sends has the fields and the types that the front end declares in `contract.ts`, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from workbench.deploy import ended, registry
from workbench.deploy.folder import ClusterFolder
from workbench.launch.interface import JobState

CONTRACT = Path(__file__).parents[2] / "extension" / "src" / "contract.ts"
_PRIMITIVES = {"string": str, "number": (int, float), "boolean": bool, "null": type(None)}


def interfaces():
    """Return the types of the fields of each interface; the names of optional ones end with a question mark."""
    text = re.sub(r"/\*\*.*?\*/", "", CONTRACT.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = re.findall(r"^export interface (\w+) \{\n(.*?)\n\}", text, re.MULTILINE | re.DOTALL)
    return {name: dict(re.findall(r"^\s+(\w+\??): (.+);$", body, re.MULTILINE)) for name, body in found}


def mistakes(value, kind, known, path):
    """Return how a value differs from a type of TypeScript."""
    if kind.endswith("[]"):
        if not isinstance(value, list):
            return [f"{path} is no list"]
        return [
            text for number, each in enumerate(value) for text in mistakes(each, kind[:-2], known, f"{path}[{number}]")
        ]
    if record := re.fullmatch(r"Record<string, (\w+)>", kind):
        return [text for name, each in value.items() for text in mistakes(each, record[1], known, f"{path}.{name}")]
    if kind in known:
        fields = {name.rstrip("?"): each for name, each in known[kind].items()}
        needed = {name for name in known[kind] if not name.endswith("?")}
        found = [f"{path} has no {name}" for name in needed - value.keys()]
        found += [f"{path}.{name} is not in {kind}" for name in value.keys() - fields.keys()]
        for name in fields.keys() & value.keys():
            found += mistakes(value[name], fields[name], known, f"{path}.{name}")
        return found
    choices = kind.split(" | ")
    is_valid = any(choice == f"'{value}'" or isinstance(value, _PRIMITIVES.get(choice, ())) for choice in choices)
    return [] if is_valid else [f"{path} is {value!r}, not {kind}"]


def test_a_value_of_another_type_is_a_mistake():
    known = {"A": {"a": "number", "b?": "'x' | null"}, "B": {"of": "A[]"}}
    assert mistakes({"of": [{"a": 1}, {"a": 2.5, "b": None}]}, "B", known, "B") == []
    assert mistakes({"of": [{"b": "y", "c": 0}]}, "B", known, "B") == [
        "B.of[0] has no a",
        "B.of[0].c is not in A",
        "B.of[0].b is 'y', not 'x' | null",
    ]


def test_every_state_of_a_job_has_a_label_that_a_language_pack_can_translate():
    text = CONTRACT.with_name("format.ts").read_text(encoding="utf-8")
    body = re.search(r"export function formatState\(.*?\n\}", text, re.DOTALL)[0]

    labels = set(re.findall(r"^ +(\w+): trans\.__\(", body, re.MULTILINE))
    # the state of a job whose scheduler is silent is that of the record
    assert {state.value for state in JobState} - {"unknown"} | {"gone"} <= labels


async def test_all_answers_are_those_of_the_contract(server, cluster):
    known = interfaces()
    cluster("whole")
    gone = cluster("gone")
    ClusterFolder.of(gone).note(gone, ended.STOPPED, "for the test")
    ClusterFolder.of(gone).remove()
    damaged = cluster("damaged")
    (ClusterFolder.of(damaged).path / "record.json").write_text("{")
    (ClusterFolder.of(registry.read("whole")).logs / "head.log").write_text("a line\n")
    _, refused = await server.ask("clusters", "POST", {"ranks": 2, "mpi": "intelmpi"})

    answers = {
        "IState": await server.ask("clusters"),
        "IFormDescription": await server.ask("form"),
        "ICheck": await server.ask("check", "POST", {"ranks": 0}),
        "ILogPart": await server.ask("clusters/whole/logs/head"),
    }
    _, files = await server.ask("clusters/whole/logs")
    _, kernels = await server.ask("kernels")
    await server.ask(f"starts/{refused['id']}", "DELETE")
    (ClusterFolder.of(damaged).path / "record.json").unlink()

    state = answers["IState"][1]
    assert all(state[part] for part in ("clusters", "broken", "starts", "ended"))
    found = [text for name, (_, answer) in answers.items() for text in mistakes(answer, name, known, name)]
    found += mistakes(refused, "IStart", known, "IStart")
    found += mistakes(files["files"], "ILogFile[]", known, "files")
    found += mistakes(kernels["kernels"], "IKernel[]", known, "kernels")
    assert found == []
