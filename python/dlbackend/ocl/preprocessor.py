"""The part of C's preprocessor that kernel_source.py needs: which lines a compiler sees, and what names stand for."""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field

_SKIPPED = re.compile(r"//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z)|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
_TOKEN = re.compile(r"[A-Za-z_]\w*|\.?\d[\w.]*|<<|>>|<=|>=|==|!=|&&|\|\||##|\S")
_DIRECTIVE = re.compile(r"\s*#\s*(\w*)\s*(.*)", re.DOTALL)
_DEFINE = re.compile(r"([A-Za-z_]\w*)(\()?(.*)", re.DOTALL)
_OPTION = re.compile(r"(?:^|\s)-([DU])\s*([A-Za-z_]\w*)(?:=(\S*))?")
_TYPEDEF = re.compile(r"\btypedef\b([^;{}()]*?)\b([A-Za-z_]\w*)\s*;")
_DEEPEST = 20  # macros within macros


@dataclass(frozen=True)
class Token:
    text: str
    start: int
    end: int


def tokens_of(text: str, start: int = 0) -> list[Token]:
    """The tokens of C text without comments; places count from `start`."""
    return [Token(found[0], start + found.start(), start + found.end()) for found in _TOKEN.finditer(text)]


@dataclass
class Preprocessed:
    """The tokens of the lines that are compiled, with their places in the text, and what names stand for there."""

    tokens: list[Token] = field(default_factory=list)
    # What holds from a place on: macros without parameters.
    macros: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    typedefs: dict[str, str] = field(default_factory=dict)

    def _macros_at(self, place: int) -> dict[str, str]:
        return next(macros for start, macros in reversed(self.macros) if start <= place)

    def expanded(self, token: Token) -> list[Token]:
        """The token, or what the macro of that name stands for; the token where that is nothing."""
        return _expand([token], self._macros_at(token.start)) or [token]

    def meaning(self, token: Token, depth: int = 0) -> list[str]:
        """The words of a type behind macros and typedefs."""
        words = []
        for each in _expand([token], self._macros_at(token.start)):
            if each.text in self.typedefs and depth < _DEEPEST:
                for part in tokens_of(self.typedefs[each.text]):
                    words += self.meaning(Token(part.text, token.start, token.end), depth + 1)
            else:
                words.append(each.text)
        return words


def _expand(tokens: list[Token], macros: dict[str, str], depth: int = 0) -> list[Token]:
    found: list[Token] = []
    for token in tokens:
        body = macros.get(token.text)
        if body is None or depth > _DEEPEST:
            found.append(token)
        else:
            found += _expand([Token(part.text, token.start, token.end) for part in tokens_of(body)], macros, depth + 1)
    return found


def preprocess(text: str, options: str, predefined: dict[str, str]) -> Preprocessed:
    """The text as compiled with these options (-D and -U) and predefined macros. ValueError for #include."""
    macros = dict(predefined)
    for letter, name, value in _OPTION.findall(options):
        if letter == "U":
            macros.pop(name, None)
        else:
            macros[name] = value or "1"
    # As long as the text, with spaces for comments and literals.
    plain = _SKIPPED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    seen = Preprocessed(macros=[(0, macros)])
    open_blocks: list[tuple[bool, bool]] = []  # whether lines count, and whether a branch before did or none can
    lines = []
    for line in re.finditer(r"(?:\\\n|[^\n])*\n?", plain):
        counts = all(block[0] for block in open_blocks)
        if directive := _DIRECTIVE.match(line[0]):
            words = directive[2].replace("\\\n", " ").strip()
            if directive[1] in ("if", "ifdef", "ifndef", "elif", "else", "endif"):
                _branch(open_blocks, directive[1], words, macros)
            elif counts:
                macros = _define(directive[1], words, macros)
                seen.macros.append((line.start(), macros))
        elif counts:
            seen.tokens += tokens_of(line[0].replace("\\\n", "  "), line.start())
            lines.append(line[0])
    for meaning, name in _TYPEDEF.findall("".join(lines)):
        seen.typedefs[name] = meaning
    return seen


def _define(directive: str, words: str, macros: dict[str, str]) -> dict[str, str]:
    """The macros behind a line of #define or #undef; others change nothing."""
    if directive == "include":
        raise ValueError("#include is not taken: kept programs are known by their text, which must have all of it")
    if directive not in ("define", "undef") or not (found := _DEFINE.match(words)):
        return macros
    others = {name: body for name, body in macros.items() if name != found[1]}
    return others if directive == "undef" or found[2] else {**others, found[1]: found[3].strip()}


def _branch(blocks: list[tuple[bool, bool]], directive: str, words: str, macros: dict[str, str]) -> None:
    """Opens, turns or closes a block of lines that a condition chooses."""
    if directive in ("if", "ifdef", "ifndef"):
        holds = _holds(words, macros) if directive == "if" else (words in macros) == (directive == "ifdef")
        blocks.append((holds, holds))
    elif not blocks:
        return  # the compiler will say so
    elif directive == "endif":
        blocks.pop()
    else:
        done = blocks.pop()[1]
        holds = not done and (directive == "else" or _holds(words, macros))
        blocks.append((holds, done or holds))


# Operators of conditions from the loosest to the tightest, all of which group from the left.
_OPERATORS: list[dict[str, Callable[[int, int], int]]] = [
    {"||": lambda a, b: bool(a or b)},
    {"&&": lambda a, b: bool(a and b)},
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge},
    {"<<": lambda a, b: a << min(b, 64), ">>": operator.rshift},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": lambda a, b: int(a / b), "%": lambda a, b: a - b * int(a / b)},
]
_SIGNS: dict[str, Callable[[int], int]] = {"!": operator.not_, "-": operator.neg, "+": operator.pos, "~": operator.inv}


def _holds(words: str, macros: dict[str, str]) -> bool:
    """Whether the condition of an #if is not zero; one that cannot be read counts as zero."""
    words = re.sub(
        r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))", lambda found: str(int((found[1] or found[2]) in macros)), words
    )
    tokens = [token.text for token in _expand(tokens_of(words), macros)]
    try:
        return _value(tokens, 0) != 0 and not tokens
    except (ValueError, IndexError, ZeroDivisionError):
        return False


def _value(tokens: list[str], level: int) -> int:
    """The value of the expression that begins here, whose tokens it takes away."""
    if level == len(_OPERATORS):
        return _operand(tokens)
    value = _value(tokens, level + 1)
    while tokens and (apply := _OPERATORS[level].get(tokens[0])):
        del tokens[0]
        value = int(apply(value, _value(tokens, level + 1)))
    return value


def _operand(tokens: list[str]) -> int:
    token = tokens.pop(0)
    if token == "(":
        value = _value(tokens, 0)
        del tokens[0]
        return value
    if sign := _SIGNS.get(token):
        return int(sign(_operand(tokens)))
    if token[0].isdigit():
        digits = token.rstrip("uUlL")
        return int(digits, 8 if digits[0] == "0" and digits.isdigit() else 0)
    return 0  # a name that is no macro
