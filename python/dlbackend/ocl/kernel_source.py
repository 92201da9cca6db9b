"""Reads the kernels of a user's OpenCL C: their names and parameters, and the text as it is compiled.

Drivers tell the parameters of a kernel only as long as they have its source, and the program cache keeps binaries. So
they are read from the text, as the preprocessor leaves it: conditions are decided, macros without parameters and plain
typedefs are replaced in types. The definition of a kernel must stand in the text and not come out of a macro.

A tensor is a place within a buffer, which OpenCL's kernels cannot be given. So each pointer to `global` or `constant`
memory gets a further parameter, an offset in bytes, that a statement at the start of the kernel adds to it. Both stand
in the kernel's own lines: a compiler's messages name the lines that the user wrote. Parameters in `constant` memory are
compiled as `global const`: the buffers of the allocator are larger than drivers take for constant memory, which is 64
KiB on NVIDIA's GPUs.
"""

import re
from dataclasses import dataclass, field

import torch

from dlbackend.ocl.preprocessor import Preprocessed, Token, preprocess

# The letter of a type in Python's struct module, and the dtypes of tensors whose elements are such numbers.
_NUMBERS: dict[str, tuple[str, tuple[torch.dtype, ...]]] = {
    "char": ("b", (torch.int8, torch.bool)),
    "uchar": (
        "B",
        (torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    ),
    "short": ("h", (torch.int16,)),
    "ushort": ("H", (torch.uint16, torch.bfloat16)),
    "int": ("i", (torch.int32,)),
    "uint": ("I", (torch.uint32,)),
    "long": ("q", (torch.int64,)),
    "ulong": ("Q", (torch.uint64,)),
    "half": ("e", (torch.float16,)),
    "float": ("f", (torch.float32,)),
    "double": ("d", (torch.float64,)),
}
_PAIRS = {"half": torch.complex32, "float": torch.complex64, "double": torch.complex128}
_VECTOR = re.compile(f"({'|'.join(_NUMBERS)})(2|3|4|8|16)?$")
_INTEGERS = {"unsigned", "signed", "char", "short", "int", "long"}
_SPACES = {"global", "constant", "local", "private", "generic"}
_CONSTANT, _GLOBAL = ("constant", "__constant"), "global const"
_QUALIFIERS = {"const", "volatile", "restrict", "__restrict", "__restrict__", "struct", "union", "enum", "register"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel. `kind` is "buffer", "local" or "value"; `dtypes` those that a buffer may hold, any if
    there are none; `format` the letter of a value's numbers in Python's struct module, `width` how many there are."""

    name: str
    type: str
    kind: str
    dtypes: tuple[torch.dtype, ...] = ()
    written: bool = False
    format: str = "?"
    width: int = 1


@dataclass
class Source:
    """A user's text: the parameters of its kernels by name, why others cannot be launched, and what is compiled."""

    text: str
    kernels: dict[str, list[Parameter]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    def parameters(self, name: str) -> list[Parameter]:
        """Those of the kernel of that name; ValueError names the kernels there are, or what is wrong with this one."""
        if name in self.faults:
            raise ValueError(self.faults[name])
        if name not in self.kernels:
            known = ", ".join(sorted({*self.kernels, *self.faults})) or "none"
            raise ValueError(f"there is no kernel '{name}' in the source; its kernels: {known}")
        return self.kernels[name]


def read_source(text: str, options: str, predefined: dict[str, str]) -> Source:
    """The kernels of `text` as compiled with these options on a device whose compiler defines these macros.

    ValueError for #include: stores of programs know them by their text.
    """
    seen = preprocess(text, options, predefined)
    source = Source(text)
    edits: list[tuple[int, int, str]] = []
    at = 0
    while found := _next_kernel(seen, at):
        at = found.end
        try:
            parameters, more = _read(seen, found)
        except ValueError as error:
            source.faults[found.name] = f"kernel {found.name}: {error}"
            continue
        source.kernels[found.name] = parameters
        edits += more
    pieces, end = [], 0
    for first, last, new in sorted(edits):
        pieces += [text[end:first], new]
        end = last
    source.text = "".join([*pieces, text[end:]])
    return source


@dataclass
class _Found:
    """A kernel's name, the tokens of each parameter, and where its body opens; -1 for a declaration."""

    name: str
    parameters: list[list[Token]]
    body: int
    end: int


def _closing(tokens: list[Token], at: int) -> int:
    """The index of the token that closes what tokens[at] opens; the last if none does."""
    depth = 0
    for i in range(at, len(tokens)):
        depth += (tokens[i].text in "([{") - (tokens[i].text in ")]}")
        if depth == 0:
            return i
    return len(tokens) - 1


def _split(tokens: list[Token]) -> list[list[Token]]:
    """The parameters between a kernel's parentheses."""
    lists: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.text in "([{") - (token.text in ")]}")
        if token.text == "," and depth == 0:
            lists.append([])
        else:
            lists[-1].append(token)
    nothing = [token.text for token in lists[0]] in ([], ["void"])
    return [] if len(lists) == 1 and nothing else lists


def _next_kernel(seen: Preprocessed, start: int) -> _Found | None:
    """The first kernel from tokens[start] on."""
    tokens = seen.tokens
    while start < len(tokens):
        words = seen.expanded(tokens[start])
        if not {"kernel", "__kernel"} & {token.text for token in words}:
            start += 1
            continue
        at = start + 1
        while at < len(tokens) and tokens[at].text not in "({;":
            is_attribute = tokens[at].text == "__attribute__"
            at = _closing(tokens, at + 1) + 1 if is_attribute else at + 1
        if at >= len(tokens) or tokens[at].text != "(":
            start += 1
            continue
        close = _closing(tokens, at)
        parameters = _split(tokens[at + 1 : close])
        name = seen.expanded(tokens[at - 1])[-1].text
        at = close + 1
        while at < len(tokens) and tokens[at].text == "__attribute__":
            at = _closing(tokens, at + 1) + 1
        has_body = at < len(tokens) and tokens[at].text == "{"
        return _Found(name, parameters, tokens[at].end if has_body else -1, close)
    return None


def _read(seen: Preprocessed, found: _Found) -> tuple[list[Parameter], list[tuple[int, int, str]]]:
    """A kernel's parameters, and the edits (first, end, new text) that give its pointers an offset."""
    parameters, edits, statements = [], [], ""
    for number, tokens in enumerate(found.parameters):
        name, declared, is_array = _name_of(tokens)
        parameter = _parameter(seen, name, declared, is_array)
        parameters.append(parameter)
        if parameter.kind != "buffer":
            continue
        offset = f"dlb_offset_{number}"
        edits.append((tokens[-1].end, tokens[-1].end, f", ulong {offset}"))
        if parameter.type.startswith("constant"):
            declared = _in_global_memory(name, declared)
        pointer, constants = _assignable(declared)
        edits += [(token.start, token.end, token.text) for token in declared if token.text == _GLOBAL]
        edits += [(token.start, token.end, "") for token in constants]
        pointer += "*" if is_array else ""
        statements += f" {name} = ({pointer})((global char*){name} + {offset});"
    if found.body >= 0:
        edits.append((found.body, found.body, statements))
    return parameters, edits


def _name_of(tokens: list[Token]) -> tuple[str, list[Token], bool]:
    """A parameter's name, its tokens without that, and whether it is an array."""
    end = next((i for i, token in enumerate(tokens) if token.text == "["), len(tokens))
    if any(token.text == "(" for token in tokens[:end]):
        raise ValueError(f"parameter '{' '.join(token.text for token in tokens)}' cannot be read")
    if end < 2 or not re.match(r"[A-Za-z_]", tokens[end - 1].text):
        raise ValueError(f"parameter '{' '.join(token.text for token in tokens)}' has no name")
    return tokens[end - 1].text, tokens[: end - 1], end < len(tokens)


def _in_global_memory(name: str, declared: list[Token]) -> list[Token]:
    """A parameter in constant memory as one in global memory."""
    if not any(token.text in _CONSTANT for token in declared):
        raise ValueError(f"parameter '{name}' is in constant memory, which its own declaration must say")
    return [Token(_GLOBAL, token.start, token.end) if token.text in _CONSTANT else token for token in declared]


def _assignable(declared: list[Token]) -> tuple[str, list[Token]]:
    """A pointer's type as a cast names it, and the tokens that forbid to assign to the pointer."""
    star = max((i for i, token in enumerate(declared) if token.text == "*"), default=len(declared))
    constants = [token for token in declared[star:] if token.text == "const"]
    return " ".join(token.text for token in declared[: star + 1]), constants


def _base(words: tuple[str, ...]) -> str:
    """The one name of a type: "uint" for unsigned int."""
    if not words or not _INTEGERS.issuperset(words):
        return " ".join(words)
    length = next((word for word in ("char", "short", "long") if word in words), "int")
    return "u" * ("unsigned" in words) + length


def _parameter(seen: Preprocessed, name: str, declared: list[Token], is_array: bool) -> Parameter:
    words = [word for token in declared for word in seen.meaning(token)]
    words = [word[2:] if word.startswith("__") and word[2:] in _SPACES else word for word in words]
    stars = words.count("*") + is_array
    space = next((word for word in words if word in _SPACES), "private")
    first = words.index("*") if "*" in words else len(words)
    plain = tuple(word for word in words if word not in _SPACES | _QUALIFIERS and word != "*")
    base = _base(plain)
    shown = " ".join(([space] if stars else []) + (["const"] if "const" in words[:first] else []) + [base])
    shown += "*" * stars
    number = _VECTOR.match(base)
    if stars > 1 or (stars and space in ("private", "generic")) or not (stars or number):
        raise ValueError(f"parameter '{name}' is of type {shown}; kernels can be given pointers to global, constant "
                         "and local memory, numbers and vectors")  # fmt: skip
    if stars and space == "local":
        return Parameter(name, shown, "local")
    if not stars and number:
        return Parameter(name, shown, "value", format=_NUMBERS[number[1]][0], width=int(number[2] or 1))
    dtypes: tuple[torch.dtype, ...] = ()
    if number:
        pair = (_PAIRS[number[1]],) if number[2] == "2" and number[1] in _PAIRS else ()
        dtypes = (*_NUMBERS[number[1]][1], *pair)
    written = space == "global" and "const" not in words[:first]
    return Parameter(name, shown, "buffer", dtypes, written)
