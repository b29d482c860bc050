"""Functions of the engine in the hands of methods: to call, not to look into."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Sealed(Generic[P, T]):
    """A function that can be called and shows nothing of what it holds.

    A closure or a ``partial`` hands whoever is given it everything behind it, such as the list of attackers. Here that
    lies in the frame of a generator, and reaching for frames is what the check of a bundle hears.

    >>> add = 3
    >>> sealed = Sealed(lambda x: x + add)
    >>> sealed(4), hasattr(sealed, "__closure__"), hasattr(sealed, "__dict__")
    (7, False, False)
    """

    __slots__ = ("_send",)

    def __init__(self, function: Callable[P, T]) -> None:
        holding = _holding(function)
        next(holding)
        self._send = holding.send

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        call: list[Any] = [args, kwargs]
        self._send(call)
        made, error = call
        if error is not None:
            raise error
        return made  # type: ignore[no-any-return]


def _holding(function: Callable[..., Any]) -> Generator[None, list[Any], None]:
    """Answer every call in place: arguments become the result and the error. Nothing of it stays here."""
    while True:
        call = yield
        try:
            call[:] = [function(*call[0], **call[1]), None]
        except BaseException as error:  # else the generator ends with it
            call[:] = [None, error]
        del call
