"""Completion in shells: scripts that ask the command itself, so that they have what the table of subcommands has."""

from __future__ import annotations

from workbench.errors import InvalidRequest

ASK = "--"
"""What stands behind ``workbench completion`` where a script asks for words."""

SCRIPTS = {
    "bash": """\
_workbench() {
    local IFS=$'\\n'
    COMPREPLY=($("$1" completion -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _workbench workbench mpi-workbench
""",
    "zsh": """\
#compdef workbench mpi-workbench
_workbench() {
    local -a found
    found=("${(@f)$("${words[1]}" completion -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    compadd -- ${found:#}
}
compdef _workbench workbench mpi-workbench
""",
    "fish": """\
function __workbench
    set -l words (commandline -opc) (commandline -ct)
    $words[1] completion -- $words[2..-1] 2>/dev/null
end
complete -c workbench -a '(__workbench)'
complete -c mpi-workbench -a '(__workbench)'
""",
}
"""Scripts by their shells."""


def script(shell: str) -> str:
    """Return the script of a shell."""
    if shell not in SCRIPTS:
        raise InvalidRequest(option="shell", given=shell, allowed=tuple(SCRIPTS))
    return SCRIPTS[shell].rstrip("\n")
