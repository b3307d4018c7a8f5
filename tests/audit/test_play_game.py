"""The candidate game of an audit: what it stores, what it needs, and when it decides."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fedglass.audit.audit import GAME, AuditResult, Job, run
from fedglass.audit.public_data import Public
from fedglass.audit.simulated import Simulated
from fedglass.bounds.success import Game
from fedglass.core.types import Training, Whitening
from fedglass.data.catalogue import glyphs
from fedglass.defend.noise import GaussianNoise
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation
from fedglass.fl.release import AsIs, Release
from fedglass.verdict.doubts import DoubtKind
from fedglass.verdict.gate import Gate
from fedglass.verdict.records import Record

KINDS = 3


@pytest.fixture(scope="module")
def characters() -> tuple[torch.Tensor, torch.Tensor]:
    drawn = glyphs().resized(14)
    return drawn.images, drawn.labels % KINDS


def played(
    characters: tuple[torch.Tensor, torch.Tensor], place: Path, candidates: int = 2800, release: Release | None = None
) -> AuditResult:
    images, labels = characters
    torch.manual_seed(0)
    body = (nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU())
    model = nn.Sequential(*body, nn.Flatten(), nn.Linear(1024, KINDS))
    client = Client("client 0", images[:48], labels[:48], release=release or AsIs())
    federation = Federation(model, [client], Training(lr=0.01), KINDS, Whitening((0.5,), (0.5,)))
    others = slice(200, 200 + candidates)
    source = Simulated(federation, public=Public.of(images[others], labels[others]))
    return run(Job([source], {}, ("psnr",)), place)


def game_of(result: AuditResult) -> Record:
    (record,) = (record for record in result.records if record.attack == GAME)
    return record


def test_a_message_names_its_records_and_not_others(
    characters: tuple[torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    result = played(characters, tmp_path)
    game = game_of(result).game
    assert isinstance(game, Game)
    assert (game.records, game.control) == (48, "counterfactual")
    assert game.control_high is not None
    assert game.low > max(0.1, game.control_high)
    assert (result.verdict.state, result.verdict.exit_code) == ("exposed", 1)
    assert result.verdict.at_least == game.low
    assert len(game.scores) == 48
    assert all(0 < p <= 1 for p in game.rank_p)
    assert not Gate(max_singling_out=0.999).exposes(game_of(result))


def test_heavy_noise_hides_them_and_the_certificate_says_so(
    characters: tuple[torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    result = played(characters, tmp_path, release=GaussianNoise(std=1.0))
    game = game_of(result).game
    assert game is not None
    assert game.statistic == "likelihood"
    assert result.verdict.state == "clear"
    assert result.verdict.at_most is not None
    assert game.low <= result.verdict.at_most


def test_without_candidates_it_is_not_played(characters: tuple[torch.Tensor, torch.Tensor], tmp_path: Path) -> None:
    result = played(characters, tmp_path, candidates=15)
    record = game_of(result)
    assert record.game is None
    assert [each.kind for each in record.doubts] == [DoubtKind.NO_CANDIDATES]
    assert result.verdict.state == "inconclusive"


def test_few_candidates_decide_nothing(characters: tuple[torch.Tensor, torch.Tensor], tmp_path: Path) -> None:
    result = played(characters, tmp_path, candidates=400)
    assert DoubtKind.FEW_CANDIDATES in [each.kind for each in game_of(result).doubts]
    assert game_of(result).game is not None
    assert result.verdict.state == "inconclusive"
