"""Amounts of money: whole micro-credits, shown as credits."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal

_MICRO = 1_000_000
_MOST = 2**53 - 1


@dataclass(frozen=True, order=True, slots=True)
class Credits:
    """An amount of credits, exact to the micro-credit.

    ``float(amount)`` is in credits; sums and differences of amounts are amounts.
    """

    micro: int
    """The amount in micro-credits, a millionth of a credit."""

    @staticmethod
    def of(amount: Credits | Decimal | float | str) -> Credits:
        """So many credits; what is finer than a micro-credit is cut off."""
        if isinstance(amount, Credits):
            return amount
        # Of a float what it prints: 0.1 is a tenth.
        exact = Decimal(str(amount))
        if not exact.is_finite():
            raise ValueError(f"{amount} is no amount of credits")
        micro = int((exact * _MICRO).to_integral_value(ROUND_FLOOR))
        if not 0 <= micro <= _MOST:
            raise ValueError(f"{amount} is no amount of credits: 0 to {_MOST / _MICRO:.0f} are")
        return Credits(micro)

    def __add__(self, other: Credits) -> Credits:
        return Credits(self.micro + other.micro)

    def __sub__(self, other: Credits) -> Credits:
        return Credits(self.micro - other.micro)

    def __bool__(self) -> bool:
        return self.micro != 0

    def __float__(self) -> float:
        return self.micro / _MICRO

    def __str__(self) -> str:
        return f"{Decimal(self.micro) / _MICRO:.6f} credits"
