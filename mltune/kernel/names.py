"""Names that a parameter may have as a macro of a CUDA source."""

from __future__ import annotations

import re

from mltune.errors import BundleError
from mltune.files.text import printable

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_WORDS = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class "
    "co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype "
    "default defined delete do double dynamic_cast else enum explicit export extern false float for friend goto if "
    "inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public "
    "register reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch "
    "template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile "
    "wchar_t while xor xor_eq"
)
_KEYWORDS = frozenset(_WORDS.split())
_CUDA = frozenset(["threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize", "x", "y", "z", "w"])


def check_macro_name(name: str) -> None:
    """Check that a parameter's name can be the name of a macro."""
    if _IDENTIFIER.fullmatch(name) is None:
        law = "consists of letters, digits and _, begins with a letter and has at most 64 characters"
    elif name in _KEYWORDS:
        law = "is not a keyword of C++"
    elif "__" in name:
        law = "has no double _, which C++ reserves"
    elif name in _CUDA:
        law = "is not one of CUDA's variables or their members"
    else:
        return
    raise BundleError(f"a parameter becomes a macro, so its name {law}, got {printable(name, 80)!r}; rename it")
