"""The cases of an audit: one attack on one target, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedglass import __version__
from fedglass.attack.hypotheses import AnyAttack
from fedglass.audit.target import Source, TargetInfo
from fedglass.core.identity import digest, identity_text
from fedglass.core.rng import derive


@dataclass(frozen=True)
class Case:
    """One attack on one target, once. `key` is its identity: equal cases of one version of fedglass have equal keys."""

    key: str
    source: int
    """The position of its source in the audit."""
    target: int
    """The position of its target in the source."""
    info: TargetInfo
    attack_name: str
    attack: AnyAttack
    repeat: int
    seed: int
    """What the attack's random numbers are drawn from."""

    @property
    def title(self) -> str:
        again = f" (repeat {self.repeat + 1})" if self.repeat else ""
        return f"{self.attack_name}: {self.info.words}{again}"


def enumerate_cases(
    sources: Sequence[Source], attacks: Mapping[str, AnyAttack], metrics: Sequence[str], repeats: int, seed: int
) -> tuple[Case, ...]:
    """Every attack on every target, `repeats` times.

    Attacks that meet the same target in the same repeat share their seed, so that they are compared from the
    same start.
    """
    cases = []
    texts = {name: identity_text(attack, f"Attack {name!r}") for name, attack in attacks.items()}
    for i, source in enumerate(sources):
        identity = source.identity()
        for j, info in enumerate(source.infos()):
            for name, attack in attacks.items():
                for repeat in range(repeats):
                    case_seed = derive(seed, "case", source.name, info.spec, repeat)
                    facts = [__version__, identity, info.spec, name, texts[name], *metrics, str(case_seed)]
                    key = digest(*facts)[:32]
                    cases.append(Case(key, i, j, info, name, attack, repeat, case_seed))
    return tuple(cases)
