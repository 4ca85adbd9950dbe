"""From the words that a user types to a verb and what comes of it, and back to words that could come next."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

from workbench.commands.table import overview, verbs
from workbench.commands.verb import Answer, Place, Verb
from workbench.errors import InvalidRequest, did_you_mean
from workbench.log import debug_log

HELP = ("-h", "--help")


@dataclass(frozen=True)
class ParsedLine:
    """What a user asks for."""

    verb: str
    """Name of the verb; ``help`` if help was asked for."""
    options: dict[str, Any]
    """Values by the names of the arguments, as typed; of ``help`` its ``text``."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidRequest(f"{self.prog}: {message}. {self.format_usage().strip()}")


def answer(words: Sequence[str], at: Place) -> Answer | None:
    """Do what was typed in a place; return what is to be shown of it, None if nothing is to be shown any more.

    Raises
    ------
    WorkbenchError
        What `parse` and the verb raise.
    """
    call = parse(words, at.name)
    if call.verb == "help":
        return Answer(call.options["text"])
    verb = verbs(at.name)[call.verb]
    at.json = call.options.pop("json", False)
    with debug_log.shown(verbose=call.options.pop("verbose")):
        return verb.show(verb.run(at, **call.options), at.name)


def parse(words: Sequence[str], place: str) -> ParsedLine:
    """Return what is asked for.

    Parameters
    ----------
    words
        What was typed after the name of the magic or of the command.
    place
        Where: `table.NOTEBOOK` or `table.TERMINAL`.

    Raises
    ------
    InvalidRequest
        If there is no such verb or option, or a value is missing; the values themselves are checked by
        whom they are for.
    """
    known = verbs(place)
    if not words:
        raise InvalidRequest(f"{place}: what to do? Allowed: {', '.join(known)}; {place} --help tells more.")
    name, *rest = words
    if name in HELP:
        return ParsedLine("help", {"text": overview(place)})
    if name not in known:
        raise InvalidRequest(f"{place} {name}: no such subcommand, {did_you_mean(name, known)}")
    parser = _parser(known[name], place)
    if any(word in HELP for word in rest):
        return ParsedLine("help", {"text": parser.format_help().rstrip()})
    given = _joined(rest, known[name])
    # argparse takes that for no value, and makes an empty list of it.
    if nothing := [word for word in given if word.startswith("-") and word.endswith("=--")]:
        raise InvalidRequest(
            f"{parser.prog}: {nothing[0]}: no value can be '--'; leave the option out, or give another."
        )
    options, left = parser.parse_known_args(given)
    if left:
        raise InvalidRequest(f"{parser.prog}: {_left_over(left, known[name], place)}")
    return ParsedLine(name, vars(options))


def _parser(verb: Verb, place: str) -> _Parser:
    # Help is not an action of argparse's: that would end the process.
    parser = _Parser(
        prog=f"{place} {verb.name}",
        usage=verb.usage(place).replace("%", "%%"),
        description=f"{verb.help[0].upper()}{verb.help[1:]}.",
        add_help=False,
        allow_abbrev=False,
    )
    for argument in verb.at(place):
        if not argument.is_option:
            nargs = None if argument.required else "?"
            parser.add_argument(argument.name, metavar=argument.metavar, nargs=nargs, help=argument.help)
        elif argument.metavar is None:
            parser.add_argument(argument.name, action="store_true", help=argument.help)
        else:
            repeat: Any = {"action": "append"} if argument.many else {}
            names = (argument.name, *argument.aliases)
            parser.add_argument(*names, metavar=argument.metavar, help=argument.help, **repeat)
    return parser


def _joined(words: Sequence[str], verb: Verb) -> list[str]:
    """Return the words with `--extra --exclusive` as one: argparse takes no value that looks like an option."""
    repeated = {argument.name for argument in verb.arguments if argument.many}
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in repeated:
            joined[-1] = f"{joined[-1]}={word}"
        else:
            joined.append(word)
    return joined


def _left_over(left: Sequence[str], verb: Verb, place: str) -> str:
    option = next((word.partition("=")[0] for word in left if word.startswith("-")), None)
    if option is None:
        return f"unexpected {left[0]!r}. Usage: {verb.usage(place)}"
    allowed = [argument.name for argument in verb.at(place) if argument.is_option]
    return f"unknown option {option!r}, {did_you_mean(option, allowed)}"


def complete(words: Sequence[str], last: str, place: str) -> list[str]:
    """Return what could stand for the word that is being typed.

    Parameters
    ----------
    words
        Complete words before it, after the name of the magic.
    last
        What there is of it.
    place
        As of `parse`.
    """
    known = verbs(place)
    if not words:
        return [name for name in known if name.startswith(last)]
    if words[0] not in known:
        return []
    arguments = known[words[0]].at(place)
    options = {name: its for its in arguments if its.is_option for name in (its.name, *its.aliases)}
    unused = [name for name in (*options, HELP[1]) if name == HELP[1] or options[name].many or name not in words]

    def takes_value(word: str) -> bool:
        return word in options and options[word].metavar is not None

    if takes_value(words[-1]):
        candidates = list(options[words[-1]].values())
    elif last.startswith("-"):
        candidates = unused
    else:
        given = [word for before, word in pairwise(words) if not word.startswith("-") and not takes_value(before)]
        left = [argument for argument in arguments if not argument.is_option][len(given) :]
        candidates = list(left[0].values()) if left else []
        if not candidates and not last:
            candidates = unused
    return [candidate for candidate in candidates if candidate.startswith(last)]
