"""Parse a command line, run its subcommand, and complete a line that is being typed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NoReturn

from workbench import config
from workbench.commands.subcommand import ARGUMENT_GROUPS, Answer, Argument, Place, Subcommand, grouped
from workbench.commands.table import find, overview, subcommands
from workbench.errors import InvalidRequest, closest, valid_values
from workbench.hints import TERMINAL
from workbench.host import debug_log
from workbench.launch import command

HELP = ("-h", "--help")


@dataclass(frozen=True)
class ParsedLine:
    """A parsed command line."""

    subcommand: Subcommand | None
    """The subcommand; None for a request for help."""
    options: dict[str, Any]
    """Values by the names of the arguments, as typed; for a request for help its ``text``."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidRequest(f"{self.prog}: {message}.", hint=self.format_usage().strip())


def answer(arguments: Sequence[str], place: Place) -> Answer | None:
    """Run a command line in a place, and return the answer to show, or None; raises as `parse` and the subcommand."""
    line = parse(arguments, place.name)
    if (subcommand := line.subcommand) is None:
        return Answer(line.options["text"])
    place.json = line.options.pop("json", False)
    with (
        config.unreadable_file_in_words(),
        debug_log.shown(verbose=line.options.pop("verbose")),
        command.answering_soon(partial(print, file=sys.stderr)),
    ):
        return subcommand.show(subcommand.run(place, **line.options), place.name)


def parse(arguments: Sequence[str], place: str) -> ParsedLine:
    """Return the subcommand of a command line, with its options.

    Parameters
    ----------
    arguments
        The arguments after the name of the magic or of the command.
    place
        `hints.NOTEBOOK` or `hints.TERMINAL`.

    Raises
    ------
    InvalidRequest
        If the subcommand or an option is unknown, or a value is missing; the subcommand checks the values.
    WorkbenchError
        If the subcommand is of another distribution, and cannot be loaded.
    """
    if not arguments:
        known = subcommands(place)
        choice = f"Choose from: {', '.join(known)}. See {place} --help."
        raise InvalidRequest(f"{place}: missing subcommand.", allowed=known, hint=choice)
    name, *rest = arguments
    if name in HELP:
        return ParsedLine(None, {"text": overview(place)})
    subcommand = None if name.startswith("-") else find(name, place)
    if subcommand is None:
        flags = [HELP[1], *(["--version"] if place == TERMINAL else [])]
        allowed = flags if name.startswith("-") else [*subcommands(place)]
        raise _unknown(f"{place} {name}: no such subcommand", name, allowed)
    parser = _parser(subcommand, place)
    if any(argument in HELP for argument in rest):
        return ParsedLine(None, {"text": parser.format_help().rstrip()})
    joined = _joined(rest, subcommand)
    # argparse makes an empty list of this value.
    if invalid := [argument for argument in joined if argument.startswith("-") and argument.endswith("=--")]:
        raise InvalidRequest(f"{parser.prog}: {invalid[0]} is not valid. Omit the option, or pass another value.")
    # parse_known_args ignores an optional argument behind an option, and the intermixed one reads options behind `--`.
    parse_known = parser.parse_known_args if "--" in joined else parser.parse_known_intermixed_args
    try:
        options, unknown = parse_known(joined)
    except argparse.ArgumentError as error:
        raise _wrong_use(parser, error, subcommand.at(place)) from None
    if unknown:
        raise _unknown_argument(parser.prog, unknown, subcommand, place)
    return ParsedLine(subcommand, vars(options))


def _parser(subcommand: Subcommand, place: str) -> _Parser:
    # The help action of argparse would end the process.
    parser = _Parser(
        prog=f"{place} {subcommand.name}",
        usage=subcommand.usage(place).replace("%", "%%"),
        description=f"{subcommand.help[0].upper()}{subcommand.help[1:]}.",
        add_help=False,
        allow_abbrev=False,
        exit_on_error=False,
    )
    for group, arguments in grouped(subcommand.at(place), ("", *ARGUMENT_GROUPS)):
        section = parser.add_argument_group(group) if group else parser
        for argument in arguments:
            if not argument.is_option:
                nargs = None if argument.required else "?"
                section.add_argument(argument.name, metavar=argument.metavar, nargs=nargs, help=argument.help)
            elif argument.metavar is None:
                section.add_argument(argument.name, action="store_true", help=argument.help)
            else:
                repeat: Any = {"action": "append"} if argument.many else {}
                names = (argument.name, *argument.aliases)
                section.add_argument(*names, metavar=argument.metavar, help=argument.help, **repeat)
    return parser


def _joined(typed: Sequence[str], subcommand: Subcommand) -> list[str]:
    """Join `--extra --exclusive` to one argument: argparse accepts no value that looks like an option."""
    repeated = {argument.name for argument in subcommand.arguments if argument.many}
    joined: list[str] = []
    for argument in typed:
        if joined and joined[-1] in repeated:
            joined[-1] = f"{joined[-1]}={argument}"
        else:
            joined.append(argument)
    return joined


def _wrong_use(parser: _Parser, error: argparse.ArgumentError, arguments: Sequence[Argument]) -> InvalidRequest:
    """Return the error of an option without its value, or of a value for an option that has none."""
    name = str(error.argument_name).partition("/")[0]  # the aliases follow
    argument = next((each for each in arguments if each.name == name), None)
    if argument is None:  # later versions of argparse raise it also for an argument that is missing
        parser.error(str(error))
    if argument.metavar is None:
        return InvalidRequest(f"{parser.prog}: {name} takes no value.", hint=parser.format_usage().strip())
    message, values = f"{parser.prog}: {name} needs a value: {argument.help}.", [*argument.values()]
    hint = valid_values(None, values) if values else parser.format_usage().strip()
    return InvalidRequest(message, option=name.lstrip("-"), allowed=values, hint=hint)


def _unknown(message: str, given: str, allowed: Sequence[str]) -> InvalidRequest:
    return InvalidRequest(f"{message}.", given=given, allowed=allowed, hint=valid_values(given, allowed))


def _unknown_argument(prog: str, unknown: Sequence[str], subcommand: Subcommand, place: str) -> InvalidRequest:
    usage = f"Usage: {subcommand.usage(place)}"
    option = next((argument.partition("=")[0] for argument in unknown if argument.startswith("-")), None)
    if option is None:
        return InvalidRequest(f"{prog}: unexpected {unknown[0]!r}.", given=unknown[0], hint=usage)
    allowed = [*(argument.name for argument in subcommand.at(place) if argument.is_option), HELP[1]]
    positional = {argument.name: argument.metavar for argument in subcommand.at(place) if not argument.is_option}
    if metavar := positional.get(closest(option, [*allowed, *positional]) or ""):
        message = f"{prog}: unknown option {option!r}, pass {metavar} without an option."
        return InvalidRequest(message, given=option, allowed=allowed, hint=usage)
    return _unknown(f"{prog}: unknown option {option!r}", option, allowed)


def split_option(typed: Sequence[str], last: str) -> tuple[list[str], str]:
    """Return complete arguments and the beginning of one, such that no option has its value in the same word.

    Examples
    --------
    >>> split_option(["start"], "--mpi=open")
    (['start', '--mpi'], 'open')
    """
    option, equals, value = last.partition("=")
    return ([*typed, option], value) if equals and option.startswith("-") else ([*typed], last)


def complete(typed: Sequence[str], last: str, place: str) -> list[str]:
    """Return the completions of the argument that is being typed.

    Parameters
    ----------
    typed
        The complete arguments before it, after the name of the magic, as of `split_option`.
    last
        Its beginning.
    place
        As of `parse`.
    """
    if not typed:
        return [name for name in subcommands(place) if name.startswith(last)]
    if (subcommand := find(typed[0], place)) is None:
        return []
    arguments = subcommand.at(place)
    options = {name: option for option in arguments if option.is_option for name in (option.name, *option.aliases)}
    unused = [name for name in (*options, HELP[1]) if name == HELP[1] or options[name].many or name not in typed]

    def takes_value(argument: str) -> bool:
        return argument in options and options[argument].metavar is not None

    if takes_value(typed[-1]):
        candidates = list(options[typed[-1]].values())
    elif last.startswith("-"):
        candidates = unused
    else:
        words = [each for before, each in pairwise(typed) if not each.startswith("-") and not takes_value(before)]
        remaining = [argument for argument in arguments if not argument.is_option][len(words) :]
        candidates = list(remaining[0].values()) if remaining else []
        if not candidates and not last:
            candidates = unused
    return [candidate for candidate in candidates if candidate.startswith(last)]
