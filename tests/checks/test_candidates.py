"""Whom a record is compared with, and who is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedglass.checks.candidates import (
    PUBLIC,
    draw_candidates,
    is_first,
    shows_one_of,
)
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.thresholds import SAME_AS_PRIVATE, SAME_IN_POOL
from fedglass.federation.truth import Examples

from .games import rows_of, toy


def test_near_duplicates_are_found(records: Examples) -> None:
    noisy = (records.images + 0.02 * torch.randn(records.images.shape, generator=stream(0, "noise"))).clamp(0, 1)
    assert shows_one_of(noisy, records.images, SAME_AS_PRIVATE).all()
    assert shows_one_of(0.5 * records.images + 0.3, records.images, SAME_AS_PRIVATE).all()
    assert not shows_one_of(toy(200, seed=50).images, records.images, SAME_AS_PRIVATE).any()
    flat = torch.full((2, 1, 8, 8), 0.5)
    assert is_first(torch.cat([flat, flat + 0.2, records.images, noisy]), SAME_IN_POOL).tolist() == (
        [True, False, True, False] + [True] * 16 + [False] * 16
    )


def test_none_among_none_is_a_duplicate(records: Examples) -> None:
    none = records.images[:0]
    assert is_first(none, SAME_IN_POOL).tolist() == []
    assert shows_one_of(none, records.images, SAME_AS_PRIVATE).tolist() == []


def test_every_record_has_a_draw_of_its_own(records: Examples, public: Examples) -> None:
    draw = draw_candidates(records, public, candidates=220)
    drawn = [draw.of_label[int(records.labels[i])][own] for i, own in zip(draw.records, draw.places, strict=True)]
    for rows, i in zip(drawn, draw.records.tolist(), strict=True):
        assert (public.labels[rows] == records.labels[i]).all()
        assert len(rows.unique()) == len(rows) == 220
    assert set(drawn[0].tolist()) != set(drawn[4].tolist())


def test_public_examples_have_the_labels_of_the_records(public: Examples) -> None:
    every = toy(16, seed=2)
    records = rows_of(every, (every.labels == 0) | (torch.arange(16) == 1))  # four of label 0, one of label 1
    draw = draw_candidates(records, public, candidates=1000)
    labels = public.labels[draw.public]
    assert len(draw.public.unique()) == len(draw.public) <= PUBLIC
    assert torch.bincount(labels, minlength=4).tolist() == [400, 200, 0, 0]


def test_records_of_a_rare_label_are_left_out(records: Examples, public: Examples) -> None:
    rare = (public.labels != 3) | (torch.arange(len(public.labels)) < 300)
    pool = Examples(public.images[rare], public.labels[rare])
    draw = draw_candidates(records, pool, candidates=1000)
    assert records.labels[draw.records].tolist() == [0, 1, 2] * 4
    assert sorted(draw.of_label) == [0, 1, 2]
    assert int((pool.labels[draw.public] == 3).sum()) == 75  # their part of the message is explained all the same
    all_rare = draw_candidates(records, Examples(public.images[:300], public.labels[:300]), candidates=1000)
    assert (len(all_rare.records), {len(own) for own in all_rare.places}) == (16, {75})


def test_candidates_that_do_not_fit_are_refused(records: Examples, public: Examples) -> None:
    def refused(records: Examples, pool: Examples) -> str:
        with pytest.raises(UsageError) as error:
            draw_candidates(records, pool, candidates=1000)
        return str(error.value)

    small = replace(public, images=public.images[:, :, :4, :4])
    assert refused(records, small) == (
        "The candidates have the shape (1, 4, 4) and the records (1, 8, 8): give candidates of the same shape."
    )
    assert refused(records, replace(public, labels=public.labels + 10)) == (
        "No candidate has one of the records' labels (0, 1, 2, 3): give candidates with the same labels."
    )
    assert refused(records, rows_of_pool(public, slice(0))).startswith("No candidate has one of the records' labels")
    assert refused(records, rows_of_pool(public, slice(40))) == (
        "The candidate game needs at least 20 different candidates of a record's label, got 10: give more, 200 at "
        "least for a verdict."
    )
    assert "one label for each image" in refused(records, replace(public, labels=public.labels[:-1]))
    assert "at least one record" in refused(rows_of(records, slice(0)), public)


def test_copies_of_the_records_are_no_candidates(records: Examples) -> None:
    copies = Examples(records.images[torch.arange(900) % 16], records.labels[torch.arange(900) % 16])
    with pytest.raises(UsageError, match="different candidates of a record's label, got 0"):
        draw_candidates(records, copies, candidates=1000)


def rows_of_pool(pool: Examples, rows: slice) -> Examples:
    return Examples(pool.images[rows], pool.labels[rows])
