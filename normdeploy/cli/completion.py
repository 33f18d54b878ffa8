"""``normdeploy completion``: what a shell needs to complete commands and options."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from normdeploy.errors import UsageError

SHELLS = ("bash", "zsh", "fish")


def completion(
    ctx: typer.Context,
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="Which shell it is for.")],
) -> None:
    """Print what makes a shell complete commands and options; it starts nothing at each press of the key.

    bash and zsh: add the line of the example to ~/.bashrc or ~/.zshrc. fish: save it as
    ~/.config/fish/completions/normdeploy.fish.
    """
    if shell not in SHELLS:
        raise UsageError(f"shell is {shell!r}; expected one of {', '.join(SHELLS)}")
    group: Any = ctx.find_root().command
    commands = {name: (command.get_short_help_str(100), _options(command)) for name, command in group.commands.items()}
    top = [option for option, _ in _options(group)]
    typer.echo(_fish(commands) if shell == "fish" else _bash(commands, top, zsh=shell == "zsh"))


def _options(command: Any) -> list[tuple[str, str]]:
    """Return the long options of a command with their help."""
    found = [(option, item.help or "") for item in command.params for option in getattr(item, "opts", ())]
    found += [(option, "") for item in command.params for option in getattr(item, "secondary_opts", ())]
    return [(option, text) for option, text in found if option.startswith("--")] + [("--help", "Show this message.")]


def _bash(commands: dict[str, tuple[str, list[tuple[str, str]]]], top: list[str], *, zsh: bool) -> str:
    cases = [
        f"    {name}) words={shlex.quote(' '.join(option for option, _ in found))} ;;"
        for name, (_, found) in commands.items()
    ]
    lines = ["autoload -U +X bashcompinit && bashcompinit"] if zsh else []
    lines += [
        "_normdeploy_completion() {",
        '  local current="${COMP_WORDS[COMP_CWORD]}" words',
        '  case "${COMP_WORDS[1]}" in',
        *cases,
        "    *) words= ;;",
        "  esac",
        '  if [ "$COMP_CWORD" -eq 1 ]; then',
        f"    words={shlex.quote(' '.join([*commands, *top]))}",
        '  elif [ "${current#-}" = "$current" ]; then',
        "    COMPREPLY=()  # no option: files, by -o default",
        "    return",
        "  fi",
        '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "}",
        "complete -o default -F _normdeploy_completion normdeploy",
    ]
    return "\n".join(lines)


def _fish(commands: dict[str, tuple[str, list[tuple[str, str]]]]) -> str:
    lines = []
    for name, (text, options) in commands.items():
        lines.append(f"complete -c normdeploy -n __fish_use_subcommand -a {name} -d {shlex.quote(text)}")
        where = shlex.quote(f"__fish_seen_subcommand_from {name}")
        lines += [
            f"complete -c normdeploy -n {where} -l {option[2:]} -d {shlex.quote(words)}" for option, words in options
        ]
    return "\n".join(lines)
