"""The magics ``%%mpi``, a cell on each rank, and ``%mpi``, the value of an expression on each rank."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)
from IPython.core.error import UsageError
from IPython.core.getipython import get_ipython
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.display import display

from workbench.cells import client as cells_client
from workbench.cells.output import LinePrefixer, OutputGroup, as_text, failures, grouped, with_label
from workbench.errors import InvalidRequest, WorkbenchError, closest, did_you_mean
from workbench.text import split

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from workbench.cells.engine_client import CellOutput
    from workbench.cells.output import CellResult

_AS_RANKS = "0,3 or 0-3"
OPTIONS = {
    "--ranks": f"ranks that run the cell, as {_AS_RANKS}; default: all",
    "--stream": "show output immediately, each line with its rank",
    "--out": "variable for the values of the last line, a list in rank order",
    "--shared": "use the names that all notebooks share, not those of this notebook",
    "--check": "compare the buffers of all ranks in each collective operation",
    "--timeout": "end the cell after this time, as 30 or '2 minutes'",
}
_FLAGS = {"--stream", "--shared", "--check"}


@magics_class
class CellMagics(Magics):
    """The magic ``%%mpi`` and ``%mpi``."""

    shell: InteractiveShell

    @no_var_expand
    @line_cell_magic
    def mpi(self, line: str, cell: str | None = None) -> Any:  # noqa: D102  # the docstring is built below
        try:
            return self._evaluate(line) if cell is None else self._run(line, cell)
        except WorkbenchError as error:
            raise UsageError(str(error)) from None

    mpi.__doc__ = """Run a cell on every rank of the cluster at the same time, in an IPython inside the rank.

    The cell can use `comm`, a communicator of the ranks that run the cell, and `rank` and `size`. NAMEs in the first
    line are objects of the notebook: a placed array becomes the block of each rank, a Dask future becomes its value,
    and any other object is copied. Names that the cell defines exist in the next cell of this notebook. Ctrl-C ends the
    cell on each rank.

    %%mpi [NAME ...] [options]
    %mpi [options] EXPRESSION   returns a list of the values, in rank order

    """ + "\n".join(f"    {option:<10} {meaning}" for option, meaning in OPTIONS.items())

    def _evaluate(self, line: str) -> list[Any]:
        expression, given = _leading_options(line)
        if not expression:
            raise InvalidRequest(
                "%mpi needs an expression, for example %mpi rank ** 2. To run a cell of several lines, use %%mpi."
            )
        out = _variable(given)
        values = self._call(expression, {}, given | {"--out": ""}).values()
        if out is not None:
            self.shell.user_ns[out] = values
        return values

    def _run(self, line: str, cell: str) -> None:
        names, given = _parse(line)
        out = _variable(given)
        result = self._call(cell, self._objects(names, given), given)
        if out is not None:
            self.shell.user_ns[out] = result.values()

    def _objects(self, names: list[str], given: dict[str, str]) -> dict[str, Any]:
        namespace = self.shell.user_ns
        if unknown := [name for name in names if name not in namespace]:
            defined = [name for name in namespace if name[0] != "_" and name not in self.shell.user_ns_hidden]
            close = closest(unknown[0], defined)
            hint = f" Did you mean {close!r}?" if close else ""
            if "," in unknown[0]:
                hint = " Separate names with blanks."
            elif given:
                hint += " A value of several words needs quotes, for example --timeout '2 minutes'."
            raise InvalidRequest(f"{unknown[0]!r} is not defined in this notebook.{hint}")
        return {name: namespace[name] for name in names}

    def _call(self, code: str, names: dict[str, Any], given: dict[str, str]) -> CellResult:
        stream, tagged = "--stream" in given, LinePrefixer()

        def show(rank: int, item: CellOutput) -> None:
            _show_tagged(rank, item, tagged)

        result = cells_client.run(
            code,
            names,
            ranks=_ranks(given["--ranks"]) if "--ranks" in given else None,
            client=self._client(),
            timeout=given.get("--timeout"),
            values="--out" in given,
            check="--check" in given,
            shared="--shared" in given,
            show=show if stream else None,
        )
        if stream:
            sys.stdout.write(tagged.rest())
        else:
            for shown in grouped(result.outputs):
                _show(shown)
        for message in failures(result):
            sys.stderr.write(f"{message}\n")
        if result.interrupted:
            try:
                result.check()
            except WorkbenchError as error:
                sys.stderr.write(f"{error}\n")
            raise KeyboardInterrupt
        result.check()
        return result

    def _client(self) -> Any:
        """Return the client of ``%mpicluster``, if it exists."""
        from distributed import Client

        client = self.shell.user_ns.get("client")
        return client if isinstance(client, Client) else None


def _show(shown: OutputGroup) -> None:
    item = shown.item
    if item.kind in {"stdout", "stderr"}:
        (sys.stderr if item.kind == "stderr" else sys.stdout).write(with_label(shown))
    else:
        sys.stdout.write(f"{shown.label}:\n")
        sys.stdout.flush()
        display(dict(item.data), metadata=dict(item.metadata), raw=True)


def _show_tagged(rank: int, item: CellOutput, tagged: LinePrefixer) -> None:
    if item.kind not in {"stdout", "stderr"}:
        sys.stdout.write(tagged.rest(rank))  # a value begins on a new line
    item = as_text(item)
    if item.kind in {"stdout", "stderr"}:
        (sys.stderr if item.kind == "stderr" else sys.stdout).write(tagged.lines(rank, item))
    else:
        sys.stdout.write(f"[{rank}]\n")
        display(dict(item.data), metadata=dict(item.metadata), raw=True)
    sys.stdout.flush()


# -- the first line --------------------------------------------------------------------------------------------


def _parse(line: str, magic: str = "%%mpi") -> tuple[list[str], dict[str, str]]:
    """Return the names and the options of a line of a magic."""
    words = split(line)
    names: list[str] = []
    given: dict[str, str] = {}
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            names.append(word)
            continue
        option, equals, value = word.partition("=")
        if option not in OPTIONS:
            raise InvalidRequest(f"{magic} has no option {option!r}: {did_you_mean(option, OPTIONS)}", given=option)
        if option not in _FLAGS and not equals:
            if not words:
                raise InvalidRequest(f"{option} needs a value: {OPTIONS[option]}.")
            value = words.pop(0)
        given[option] = value
    return names, given


def _leading_options(line: str) -> tuple[str, dict[str, str]]:
    """Return the expression of a line, and the options before it."""
    given: dict[str, str] = {}
    while match := re.match(r"""\s*(--\w+)(?:(?:=|\s+)('[^']*'|"[^"]*"|\S+))?\s*""", line):
        option = match[1]
        rest = line[match.end(1) :] if option in _FLAGS else line[match.end() :]
        given |= _parse(line[: len(line) - len(rest)], "%mpi")[1]
        line = rest
    return line.strip(), given


def _variable(given: dict[str, str]) -> str | None:
    """Return the variable for the values, if one is asked for."""
    out = given.get("--out")
    if out is not None and not out.isidentifier():
        raise InvalidRequest(f"--out {out} is not valid. Choose a name for a variable.")
    return out


def _ranks(text: str) -> list[int]:
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        last = int(match[2] or match[1]) if match else -1
        if match is None or last < int(match[1]):
            raise InvalidRequest(f"--ranks {text} is not valid. Choose {_AS_RANKS}.", option="ranks", given=text)
        ranks |= set(range(int(match[1]), last + 1))
    return sorted(ranks)


# -- completion ------------------------------------------------------------------------------------------------

# A line with `%mpi`, the first line of a cell with `%%mpi`, and the name before the cursor.
_LINE = re.compile(r"\s*([\w.]+\s*=\s*)?%mpi\s")
_FIRST = re.compile(r"\s*%%mpi\s")
_DOTTED = re.compile(r"[^\W\d][\w.]*$")


@context_matcher(identifier="workbench.mpi")  # type: ignore[untyped-decorator]
def match(context: CompletionContext) -> SimpleMatcherResult:
    """Complete options in the first line of ``%%mpi``, and names of rank 0 in the others."""
    before = context.text_until_cursor
    is_line, is_first = _LINE.match(before), _FIRST.match(before)
    if (is_line or is_first) and before.split(" ")[-1].startswith("-"):
        last = before.split(" ")[-1]
        matches = [option for option in OPTIONS if option.startswith(last)]
    elif (dotted := _DOTTED.search(before)) and (is_line or (_FIRST.match(context.full_text) and not is_first)):
        last = dotted[0]
        first = before if is_line else context.full_text.lstrip().partition("\n")[0] + " "
        matches = cells_client.complete(last, _client_here(), shared=" --shared " in first)
    else:
        return SimpleMatcherResult(completions=[], suppress=False)
    matched: SimpleMatcherResult = SimpleMatcherResult(
        completions=[SimpleCompletion(text=text, type="mpi") for text in matches],
        matched_fragment=last,
        suppress=bool(matches),
        ordered=True,
    )
    return matched


def _client_here() -> Any:
    shell: Any = get_ipython()
    return CellMagics(shell)._client()  # noqa: SLF001  (the same file)
