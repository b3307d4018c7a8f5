"""What the papers print, as it was transcribed."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest

from fedglass.core.errors import UsageError
from fedglass.reproduce.tables import Printed, choose_rows, figure, names, table

ROWS = {
    "dlfa-table1": 10,
    "dlfa-table2": 10,
    "dlfa-table3": 10,
    "dlfa-table4": 8,
    "dlfa-table5": 9,
    "dlfa-table6": 7,
    "dlfa-table7": 3,
    "dlfa-table8": 4,
    "dlfa-table9": 4,
    "dlfa-table10": 3,
    "dlfa-table11": 10,
    "sme-table1": 4,
    "sme-table2": 12,
    "sme-table3": 6,
    "sme-table4": 4,
    "sme-table5": 4,
    "sme-table6": 16,
    "sme-table7": 24,
    "sme-figure6": 4,
    "sme-theorem43": 3,
    "sme-theorem45": 3,
    "c2f-table1": 5,
    "c2f-table2": 2,
    "c2f-table3": 2,
    "c2f-table4": 3,
    "c2f-table5": 15,
    "c2f-table6": 15,
    "c2f-figure3": 9,
    "c2f-figure4": 4,
    "c2f-figure9": 5,
    "c2f-figure10": 5,
    "c2f-figure11": 12,
    "c2f-figure13": 17,
    "c2f-figure14": 15,
    "c2f-figure15": 4,
    "c2f-figure16": 18,
    "c2f-figure19": 2,
    "c2f-figure20": 6,
    "c2f-figure25": 24,
    "curious-figure5": 15,
    "curious-figure6": 24,
    "curious-figure7": 3,
    "curious-figure9": 1,
    "curious-figure15": 3,
    "curious-figure11": 9,
    "curious-figure12": 8,
    "curious-figure13": 15,
    "curious-figure14": 16,
    "curious-lemma1": 12,
    "curious-release": 1,
    "curious-search": 6,
    "malicious-theorem1": 4,
    "malicious-budgets": 9,
    "malicious-clipping": 8,
    "malicious-table1": 2,
    "malicious-table2": 4,
    "malicious-table3": 6,
    "malicious-table4": 6,
    "malicious-table5": 12,
    "malicious-figure2": 32,
    "malicious-figure3": 64,
    "malicious-figure4": 120,
    "malicious-figure5": 120,
    "malicious-figure6": 2,
    "malicious-rounds": 42,
}
SPOTS = [
    ("dlfa-table1", 4, "prior", "recovered", Printed(65.5)),
    ("dlfa-table1", 4, "prior", "psnr", Printed(21.5)),
    ("dlfa-table1", 10, "fedsgd", "psnr", Printed(12.8)),
    ("dlfa-table2", 3, "interpolated", "label_errors", Printed(3.2, 1.94)),
    ("dlfa-table3", 4, "prior", "recovered", Printed(48.5)),
    ("dlfa-table4", 8, "cifar100", "recovered", Printed(58.8)),
    ("dlfa-table6", 7, "prior", "recovered", Printed(27.6)),
    ("dlfa-table7", 3, "fedsgd-epoch", "psnr", Printed(13.2)),
    ("dlfa-table8", 1, "shared", "recovered", Printed(68.4)),
    ("dlfa-table9", 3, "no-prior", "psnr", Printed(20.3)),
    ("dlfa-table10", 3, "prior", "recovered", Printed(29.7)),
    ("dlfa-table11", 9, "prior", "hours", Printed(36.0)),
    ("sme-table1", 4, "geometry", "cosine_best", Printed(0.973, 0.016)),
    ("sme-table2", 1, "sme", "psnr", Printed(30.3, 0.3)),
    ("sme-table2", 7, "ig", "psnr", Printed(26.0, 0.1)),
    ("sme-table2", 12, "dlfa", "psnr", None),
    ("sme-table3", 6, "dlfa", "gigabytes", Printed(102.0)),
    ("sme-table5", 4, "geometry", "min_share", Printed(0.406, 0.176)),
    ("sme-table6", 16, "dlfa", "psnr", Printed(19.0, 0.2)),
    ("sme-table7", 4, "sme", "psnr", Printed(31.4, 0.3)),
    ("sme-table7", 13, "sme", "psnr", Printed(36.8, 0.5)),
    ("c2f-table1", 5, "ours", "psnr", Printed(47.737)),
    ("c2f-table1", 3, "hfgradinv", "lpips", Printed(0.509)),
    ("c2f-table1", 4, "idlg", "ssim", Printed(0.841)),
    ("c2f-table2", 2, "invg", "psnr", Printed(32.917)),
    ("c2f-table3", 1, "coarse", "lpips", Printed(0.654)),
    ("c2f-table4", 1, "crop", "median", Printed(12.283)),
    ("c2f-figure4", 4, "idlg", "pearson", Printed(-0.555)),
    ("c2f-table5", 1, "fedleak", "psnr", Printed(12.35)),
    ("c2f-table5", 10, "ours", "ssim", Printed(0.28)),
    ("c2f-table6", 15, "hfgradinv", "lpips", Printed(0.81)),
    ("c2f-figure3", 4, "invg", "sparsity", Printed(0.344)),
    ("c2f-figure3", 9, "invg", "pearson", Printed(-0.478)),
    ("c2f-figure13", 17, "hfgradinv", "psnr", Printed(14.02)),
    ("c2f-figure16", 4, "ours", "psnr", None),
    ("curious-lemma1", 1, "divergence", "expectation", Printed(2.0)),
    ("curious-lemma1", 8, "divergence", "expectation", Printed(-1.0)),
    ("malicious-budgets", 1, "clt", "epsilon", Printed(3.3)),
    ("malicious-budgets", 3, "clt", "epsilon", Printed(1.2)),
    ("curious-release", 1, "ours", "objective_1", Printed(4.8)),
    ("curious-release", 1, "ours", "objective_99", Printed(0.582)),
    ("curious-figure5", 1, "ours", "lpips", None),
    ("curious-figure7", 2, "ddrm", "gain", "20 to 30"),
    ("curious-figure9", 1, "mi_hsic", "psnr", None),
    ("curious-figure15", 3, "rog", "lpips", None),
    ("malicious-table1", 2, "flip", "accuracy", Printed(46.7)),
    ("malicious-table2", 4, "dp7", "accuracy", Printed(16.5)),
    ("malicious-table3", 3, "freqfed", "accuracy", Printed(72.5)),
    ("malicious-table4", 4, "krum-dp", "accuracy", Printed(17.6)),
    ("malicious-table5", 4, "published", "rmse", Printed(0.392)),
    ("malicious-figure6", 1, "invertgrad", "rmse", Printed(0.41)),
    ("malicious-figure2", 1, "published", "rmse", None),
]
MISPRINTED = {("sme-table6", 5), ("sme-table7", 21)}
"""Rows whose printed difference is not that of their columns."""


@pytest.mark.parametrize(("name", "rows"), ROWS.items())
def test_every_table_has_the_papers_rows(name: str, rows: int) -> None:
    found = table(name)
    assert len(found.rows) == rows
    assert [row.number for row in found.rows] == list(range(1, rows + 1))
    assert found.source.startswith(("Dimitrov", "Zhu", "Wilson", "Yue"))
    for row in found.rows:
        assert set(row.values) == set(found.methods)
        assert all(set(values) == set(found.measures) for values in row.values.values())


def test_every_file_is_listed() -> None:
    listed = names()
    assert set(ROWS) <= set(listed)
    assert all(figure(name).table in ROWS for name in listed)
    places = {name: place for place, name in enumerate(listed)}
    for names_in_order in (["curious-figure5", "curious-figure6"], ["dlfa-table1", "dlfa-table2", "dlfa-table3"]):
        first = places[names_in_order[0]]
        assert [places[name] for name in names_in_order] == list(range(first, first + len(names_in_order)))
    assert list(listed)[:7] == [f"c2f-table{i}" for i in range(1, 7)] + ["c2f-figure3"]


@pytest.mark.parametrize(("name", "row", "method", "measure", "printed"), SPOTS)
def test_spot_checks(name: str, row: int, method: str, measure: str, printed: Printed | str | None) -> None:
    assert table(name).rows[row - 1].values[method][measure] == printed


@pytest.mark.parametrize("name", ["sme-table2", "sme-table6", "sme-table7"])
def test_differences_agree_with_the_columns_they_are_made_of(name: str) -> None:
    rows: list[dict[str, Any]] = json.loads(
        (resources.files("fedglass.reproduce") / "published" / f"{name}.json").read_text()
    )["rows"]
    for number, row in enumerate(rows, 1):
        if row["delta_psnr"] is None or (name, number) in MISPRINTED:
            continue
        dlfa, ig, sme = (row["values"][method][1][0] for method in ("dlfa", "ig", "sme"))
        assert sme - max(dlfa, ig) == pytest.approx(row["delta_psnr"], abs=0.051), (name, number)


def test_tables_repeat_their_common_settings() -> None:
    base = table("dlfa-table1").rows[3].values
    for name, row in (("dlfa-table6", 0), ("dlfa-table7", 0), ("dlfa-table8", 2), ("dlfa-table10", 0)):
        assert table(name).rows[row].values == base
    assert table("dlfa-table9").rows[0].values == table("dlfa-table1").rows[1].values
    for later, first in ((0, 0), (1, 1), (2, 3), (3, 4)):
        assert table("sme-table6").rows[later].values == table("sme-table2").rows[first].values


def test_figures_name_rows_and_methods_of_their_tables() -> None:
    for name in names():
        found = figure(name)
        of = table(found.table)
        assert all(1 <= number <= len(of.rows) for number in found.rows)
        assert set(found.methods) <= set(of.methods)


def test_rows_are_chosen_by_number_and_by_setting() -> None:
    of = table("sme-table2")
    assert [row.number for row in choose_rows(of, [])] == list(range(1, 13))
    assert [row.number for row in choose_rows(of, ["2-3", "12"])] == [2, 3, 12]
    assert [row.number for row in choose_rows(of, ["dataset=cifar100,examples=10"])] == [7, 8, 9]


@pytest.mark.parametrize("choice", ["0", "13", "3-2", "x", "", "1,,2"])
def test_rows_that_do_not_exist_are_refused(choice: str) -> None:
    with pytest.raises(UsageError, match="rows must be numbers from 1 to 12"):
        choose_rows(table("sme-table2"), [choice])


def test_unknown_fields_and_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'epochs'"):
        choose_rows(table("sme-table2"), ["epoch=10"])
    with pytest.raises(UsageError, match="no row of sme-table2 has epochs=11"):
        choose_rows(table("sme-table2"), ["epochs=11"])


def test_an_unknown_table_is_met_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="did you mean 'dlfa-table1'"):
        figure("dlfa-tabel1")
