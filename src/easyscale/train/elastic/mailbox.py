"""Orders of the launcher, put in by the thread that listens to it and read by the script's. Runs in the worker."""

from __future__ import annotations

import threading
from collections.abc import Callable

from easyscale.core.orders import Form, Go, Order


class Mailbox:
    """The newest orders; an older one than the last is never of interest.

    Attributes:
        on_form: called, in the listening thread, with each order to form a generation.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._form: Form | None = None
        self._gone = -1
        self.on_form: Callable[[Form], None] = lambda form: None

    def put(self, order: Order) -> None:
        """An order has come."""
        with self._changed:
            if isinstance(order, Go):
                self._gone = max(self._gone, order.generation)
            elif isinstance(order, Form) and (self._form is None or order.generation > self._form.generation):
                self._form = order
            self._changed.notify_all()
        if isinstance(order, Form):
            self.on_form(order)

    def newest(self, newer_than: int) -> Form | None:
        """The order to form a generation after ``newer_than``, if there is one."""
        form = self._form
        return form if form is not None and form.generation > newer_than else None

    def wait_form(self, newer_than: int, *, is_urgent: bool = False) -> Form:
        """The next order to form a generation after ``newer_than``; ``is_urgent``: no other will do."""

        def found() -> Form | None:
            form = self.newest(newer_than)
            return form if form is not None and (form.is_urgent or not is_urgent) else None

        with self._changed:
            self._changed.wait_for(lambda: found() is not None)
            form = found()
        assert form is not None
        return form

    def wait_go(self, generation: int) -> bool:
        """Whether ``generation`` begins; false if another one was ordered instead."""
        with self._changed:
            self._changed.wait_for(lambda: self._gone >= generation or self.newest(generation) is not None)
            return self._gone >= generation
