"""Quantities in the one form in which the API server gives them back, so that no drift is seen where there is none."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_PATTERN: Final = re.compile(r"^([+-]?[0-9.]+)([A-Za-z]*|[eE][+-]?[0-9]+)$")
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL: Final = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


def value(text: str | int) -> Decimal:
    """Return the number that a quantity names.

    Raises:
        ValueError: it is not a quantity.
    """
    match = _PATTERN.match(str(text).strip())
    if match is None:
        raise ValueError("expected a quantity such as 500m, 1.5 or 5Gi")
    number, suffix = match.groups()
    if number.count(".") > 1 or number.strip("+-.") == "":
        raise ValueError("expected a quantity such as 500m, 1.5 or 5Gi")
    if suffix in _DECIMAL:
        return Decimal(number) * Decimal(1000) ** _DECIMAL[suffix]
    if suffix in _BINARY:
        return Decimal(number) * Decimal(1024) ** _BINARY.index(suffix)
    if suffix[:1] in "eE":
        return Decimal(f"{number}{suffix}")
    raise ValueError("expected a quantity such as 500m, 1.5 or 5Gi")


def canonical(text: str | int) -> str:
    """Return the quantity as Kubernetes writes it: the largest suffix without a fraction."""
    number = value(text)
    is_binary = str(text).endswith("i")
    if is_binary and abs(number) >= 1024 and number == int(number):
        whole, power = int(number), 0
        while whole % 1024 == 0 and power < len(_BINARY) - 1:
            whole, power = whole // 1024, power + 1
        return f"{whole}{_BINARY[power]}"
    if number == 0:
        return "0"
    for suffix, power in sorted(_DECIMAL.items(), key=lambda item: -item[1]):
        scaled = number / Decimal(1000) ** power
        if scaled == int(scaled):
            return f"{int(scaled)}{suffix}"
    return str(text)


def is_larger(left: str | int, right: str | int) -> bool:
    """Whether the first quantity is above the second."""
    return value(left) > value(right)


def resources(block: dict[str, object]) -> dict[str, object]:
    """Return a `resources` block with each quantity in its canonical form and nothing empty."""
    result: dict[str, object] = {}
    for part, amounts in block.items():
        if isinstance(amounts, dict):
            if amounts:
                result[part] = {name: canonical(amount) for name, amount in amounts.items()}
        elif amounts:
            result[part] = amounts
    return result
