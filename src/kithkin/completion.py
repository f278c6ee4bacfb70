"""Completion for shells: a script with every command, flag and known word in it, so that a Tab starts no Python."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from kithkin.manual import Command, Flag, commands

WHERE = """\
# bash: kithkin completion bash > ~/.local/share/bash-completion/completions/kithkin
# zsh:  kithkin completion zsh > ~/.kithkin.zsh, and `source ~/.kithkin.zsh` in ~/.zshrc after compinit
# fish: kithkin completion fish > ~/.config/fish/completions/kithkin.fish
# Made by kithkin {version}; once more after an update."""

BASH = r"""
_kithkin() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} path=kithkin flag="" before="" i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$path ${{COMP_WORDS[i]}}" in
{paths}
        esac
        case "${{COMP_WORDS[i]}}" in -*) flag=${{COMP_WORDS[i]}} ;; esac
    done
    COMPREPLY=()
    if [[ $cur == "=" ]]; then cur=""; fi  # after --flag= bash takes the sign for the word
    if [[ $cur == --*=* ]]; then flag=${{cur%%=*}} before=$flag= cur=${{cur#*=}}; fi  # zsh takes all of it
    case "$cur" in
        -*) ;;
        *)
            case "$path $flag" in
{words}
            esac
            ;;
    esac
    if [[ -n $before && ${{#COMPREPLY[@]}} -eq 0 ]]; then
        for i in "$cur"*; do if [[ -e $i ]]; then COMPREPLY+=("$before$i"); fi; done
    fi
    if [[ ${{#COMPREPLY[@]}} -gt 0 || ( $cur != -* && -n $flag ) ]]; then return; fi
    case "$path" in
{flags}
    esac
}}
complete -o bashdefault -o default -F _kithkin kithkin
"""

FISH = """
set -g __kithkin_paths {paths}
function __kithkin_at  # whether the line has come to this command
    set -l path kithkin
    for word in (commandline -opc)[2..]
        contains -- "$path $word" $__kithkin_paths; and set path "$path $word"
    end
    test "$path" = "$argv"
end
function __kithkin_after  # whether this flag was the last one
    set -l flags (string match -- '--*' (commandline -opc))
    test "$flags[-1]" = $argv
end
{rules}
"""


def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print a script that completes kithkin's commands, flags and names in a shell.

    Args:
        shell: For which shell; the script's first lines say where it goes.
    """
    from kithkin import __version__

    known = with_every_setting(commands())
    made = fish(known) if shell == "fish" else bash(known)
    if shell == "zsh":
        made = "autoload -U +X bashcompinit && bashcompinit\n" + made
    sys.stdout.write(f"{WHERE.format(version=__version__)}\n{made}")


def with_every_setting(known: Sequence[Command]) -> list[Command]:
    """Where a method is named, the flags of all methods: a script cannot tell whose they are, and --help has um's alone."""
    (compare,) = (command for command in known if command.words == ("compare",))
    settings = {flag.name: flag for flag in compare.flags if flag.group == "own options"}

    def more(command: Command) -> Command:
        there = {flag.name: flag for flag in command.flags}
        return replace(command, flags=tuple({**settings, **there}.values())) if "--method" in there else command

    return [more(command) for command in known]


def bash(known: Sequence[Command]) -> str:
    """zsh understands it too, by its `bashcompinit`."""
    paths, words, flags = [], [], []
    for command in known:
        path = " ".join(("kithkin", *command.words))
        if command.words:
            paths.append(f'            "{path}") path="{path}" ;;')
        for flag, choices in _words(command):
            words.append(f'                "{path} {flag}") {_reply(choices)} ;;')
        names = command.below or ("--help", *(flag.name for flag in command.flags if flag.name))
        asked = "[[ $cur == -* ]] && " if any(not flag.name and flag.is_path for flag in command.flags) else ""
        flags.append(f'        "{path}") {asked}{_reply(names)} ;;')
    return BASH.format(paths="\n".join(paths), words="\n".join(words), flags="\n".join(flags))


def _reply(words: Sequence[str]) -> str:
    return f'COMPREPLY=($(compgen -P "$before" -W "{" ".join(words)}" -- "$cur"))'


def fish(known: Sequence[Command]) -> str:
    abouts = {command.words: command.about.partition("\n")[0] for command in known}
    rules: list[str] = []
    for command in known:
        path = " ".join(("kithkin", *command.words))
        rule = f"complete -c kithkin -n '__kithkin_at {path}'"
        rules += [f"{rule} -f -a {name} -d {_quoted(abouts[*command.words, name])}" for name in command.below]
        choices = dict(_words(command))
        for flag in command.flags:
            words = choices.get(flag.name)
            takes = f" -x -a {_quoted(' '.join(words))}" if words else " -r -F" if flag.is_path else " -x" if flag.value else ""
            if flag.name:
                rules.append(f"{rule} -l {flag.name.removeprefix('--')}{takes} -d {_quoted(flag.about)}")
            if words and flag.is_repeated:
                rules.append(f"{rule} -n '__kithkin_after {flag.name}' -f -a {_quoted(' '.join(words))}")
        if words := choices.get(""):
            rules.append(f"{rule} -f -a {_quoted(' '.join(words))}")
    paths = " ".join(_quoted(" ".join(("kithkin", *words))) for words in abouts if words)
    return FISH.format(paths=paths, rules="\n".join(rules))


def _words(command: Command) -> Iterator[tuple[str, Sequence[str]]]:
    """The words that a flag takes; of a place in the line, by the flag's name ""."""
    from kithkin.data.official import names
    from kithkin.methods import METHODS

    sets = names()
    named = {"--method": tuple(METHODS), "--methods": tuple(METHODS), "--data": sets, "--model": ("resnet9",)}
    named["--device"] = ("auto", "cpu", "cuda")
    for flag in command.flags:
        if choices := flag.choices or named.get(flag.name, ()):
            yield flag.name, choices
    if command.words == ("explain",):
        yield "", tuple(METHODS)
    if command.words[:1] == ("data",) and any(_is_name(flag) for flag in command.flags):
        yield "", sets


def _is_name(flag: Flag) -> bool:
    return not flag.name and flag.value == "STR"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
