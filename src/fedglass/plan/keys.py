"""What the tables of a plan are made of: types of keys, and tables that name something of the registry."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=1, strict=True)]
Classes = Annotated[int, Field(ge=2, strict=True)]
Index = Annotated[int, Field(ge=0, strict=True)]
Indices = Annotated[list[Index], Field(min_length=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Share = Annotated[float, Field(ge=0, lt=1, strict=True)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Numbers = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1, max_length=16)]


class Table(BaseModel):
    """A table of a plan: every key is known, and says in its own words what it is."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Named(BaseModel):
    """Something of the registry; keys beside its name are its options."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    name: Name
    """As `fedglass list` shows it, or `package.module:name` for your own."""

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def listed(value: Any) -> Any:
    """A single table stands for a list of one: `[federation]` is short for `[[federation]]`."""
    return [value] if isinstance(value, dict) else value
