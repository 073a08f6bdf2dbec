"""Where a joiner receives the job's tensors."""

from __future__ import annotations

import torch

from easyscale.train.elastic.transfer import empty_tensors, table_of


def test_a_tensor_is_received_where_it_will_be_if_it_fits_there() -> None:
    sent = {"same": torch.ones(2, 3), "other shape": torch.ones(6), "other dtype": torch.ones(6), "new": torch.ones(1)}
    places = {
        "same": torch.zeros(2, 3),
        "other shape": torch.zeros(2, 3),
        "other dtype": torch.zeros(6, dtype=torch.float64),
        "never sent": torch.zeros(4),
    }
    found = empty_tensors(table_of(sent), None, places)
    assert found["same"] is places["same"]
    assert list(found) == list(sent)
    assert table_of(found) == table_of(sent)
    assert not any(found[name] is place for name, place in places.items() if name in found and name != "same")


def test_memory_with_another_order_is_left_alone() -> None:
    sent = {"image": torch.ones(1, 2, 2, 2)}
    places = {"image": torch.zeros(1, 2, 2, 2).to(memory_format=torch.channels_last)}
    assert empty_tensors(table_of(sent), None, places)["image"].is_contiguous()
