"""The sampler of a prepared loader, as a script sees it. Runs in the worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from easyscale.core.errors import UsageError

if TYPE_CHECKING:
    from easyscale.train.data.loader import ElasticLoader


class SamplerView:
    """The script's own sampler, but for ``set_epoch`` and ``len``, which are those of a DDP rank's."""

    def __init__(self, loader: ElasticLoader) -> None:
        vars(self).update(_loader=loader, _own=loader.base.sampler)

    def __len__(self) -> int:
        loader: ElasticLoader = self._loader
        return loader.order.num_samples_of_rank

    def __iter__(self) -> Iterator[Any]:
        raise UsageError("the samples of a prepared loader depend on the virtual rank: iterate over the loader instead")

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation of the next iterations."""
        self._loader.set_epoch(epoch)

    def __getattr__(self, name: str) -> Any:
        if name in ("_own", "_loader"):  # not set yet: unpickling or copying
            raise AttributeError(name)
        return getattr(self._own, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._own, name, value)
