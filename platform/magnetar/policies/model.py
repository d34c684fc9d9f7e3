"""What every policy model does alike: tolerant in what it reads, strict in what it keeps.

Unknown fields are ignored, a null counts as not set, and scalars are coerced as Pulsar's JSON reader does
(`"10240"` is a number, `"true"` a truth value). What comes out leaves out what is not set.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from magnetar.policies.errors import BadValue

Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]


class PolicyModel(BaseModel):
    """A value in a policy. Frozen: what a cache hands out must not change in anyone's hands."""

    model_config = ConfigDict(
        extra="ignore",
        frozen=True,
        validate_by_name=True,
        validate_by_alias=True,
        coerce_numbers_to_str=True,
        defer_build=True,  # A start pays for the models it uses, not for all of them.
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_unset(cls, data: Any) -> Any:
        if isinstance(data, dict) and None in data.values():
            return {name: value for name, value in data.items() if value is not None}
        return data

    @classmethod
    def read(cls, data: Any) -> Self:
        """From parsed JSON; None reads as an empty object.

        Raises:
            BadValue: a field has the wrong type, or its value is out of range.
        """
        try:
            return cls.model_validate({} if data is None else data)
        except ValidationError as error:
            raise BadValue(f"Invalid {cls.__name__}: {describe(error)}") from None

    def to_json(self) -> dict[str, Any]:
        """As JSON objects are told: Pulsar's names, nothing that is not set."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def changed(self, **fields: Any) -> Self:
        """A copy that differs in `fields`, which are taken as they are."""
        return self.model_copy(update=fields)


class CamelModel(PolicyModel):
    """A model whose JSON names are the field names in camelCase."""

    model_config = ConfigDict(alias_generator=to_camel)


def describe(error: ValidationError) -> str:
    """What is wrong, in one line: the first three faults, each with where it is."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    told = [
        f"{'.'.join(str(part) for part in fault['loc']) or 'body'}: {fault['msg']}" for fault in faults[:3]
    ]
    return "; ".join(told) + (f" (and {len(faults) - 3} more)" if len(faults) > 3 else "")
