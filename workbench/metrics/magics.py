"""``%%mpi_profile``: a profile of all ranks while a cell ran."""

from __future__ import annotations

import ast
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class, no_var_expand
from IPython.display import display

from workbench.errors import InvalidRequest, WorkbenchError
from workbench.metrics.profile import Profile
from workbench.text import split

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from workbench.metrics.profile_frame import ProfileFrame


@magics_class
class ProfileMagics(Magics):
    """The magic ``%%mpi_profile``."""

    shell: InteractiveShell

    @no_var_expand
    @cell_magic
    def mpi_profile(self, line: str, cell: str) -> ProfileFrame:
        """Run a cell in the notebook, and show a profile of all ranks of the cluster, like the table of mpiP.

        %%mpi_profile [--out NAME]

            --out   variable for the frame

        The cell may begin with another magic, for example %%mpi. The value of the cell is a frame with a row for each
        rank (seconds, compute, MPI, waiting, messages, bytes, longest operation). Its attributes `operations` and
        `sites` are frames of the MPI operations and of the call sites in your code. The value of the last line of the
        cell is displayed above the table. If the cell fails or is interrupted, the table is shown before the error.
        """
        from distributed import Client

        client = self.shell.user_ns.get("client")
        try:
            out = _variable(line)
            code = self._compile(cell)
            profile = Profile(client if isinstance(client, Client) else None).begin()
        except WorkbenchError as error:
            raise UsageError(str(error)) from None
        try:
            with profile:
                self._execute(*code)
        except BaseException:
            with suppress(InvalidRequest):  # a profile without a frame has added a note to the error
                display(self._bind(profile, out))
            raise
        return self._bind(profile, out)

    def _bind(self, profile: Profile, out: str | None) -> ProfileFrame:
        if out is not None:
            self.shell.user_ns[out] = profile.frame
        return profile.frame

    def _compile(self, cell: str) -> tuple[ast.Module, str]:
        """Return the syntax tree and the file name that a cell would have without the magic."""
        # The empty line stands for the line of the magic, so that line numbers are right.
        text = "\n" + self.shell.transform_cell(cell)
        file = self.shell.compile.cache(text, self.shell.execution_count, raw_code="\n" + cell)
        return self.shell.transform_ast(self.shell.compile.ast_parse(text, filename=file)), file

    def _execute(self, tree: ast.Module, file: str) -> None:
        """Run a cell in the notebook's namespace, and display the value of its last line."""
        names = self.shell.user_global_ns, self.shell.user_ns
        compiled: Any = self.shell.compile
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compiled(tree, file, "exec"), *names)  # noqa: S102  (the user's own code)
        if isinstance(last, ast.Expr):
            value = eval(compiled(ast.Expression(last.value), file, "eval"), *names)  # noqa: S307  (the same)
            if value is not None:
                display(value)


def _variable(line: str) -> str | None:
    """Return the variable that the line of the magic names for the frame."""
    arguments = split(line.replace("=", " ", 1))
    if arguments and (arguments[0] != "--out" or len(arguments) != 2 or not arguments[1].isidentifier()):
        raise InvalidRequest(
            f"%%mpi_profile {line}: the arguments are not valid. Usage: %%mpi_profile [--out NAME], where NAME is a "
            "name for a variable."
        )
    return arguments[1] if arguments else None
