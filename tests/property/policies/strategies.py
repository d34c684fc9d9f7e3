"""Policies of every shape, for Hypothesis."""

from __future__ import annotations

from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from magnetar.policies.model import PolicyModel

NAMES = st.text("abcxyz-_.:=ü ", min_size=1, max_size=6)


@cache
def models(kind: type[PolicyModel], fields_max: int = 5) -> st.SearchStrategy[Any]:
    """Instances of a model, of which a few fields are set."""
    kind.model_rebuild()
    fields = {name: _field(field) for name, field in kind.model_fields.items()}

    @st.composite
    def instances(draw: st.DrawFn) -> Any:
        names = draw(st.lists(st.sampled_from(sorted(fields)), unique=True, max_size=fields_max))
        return kind(**{name: draw(fields[name]) for name in names})

    return instances()


def field_of(kind: type[PolicyModel], name: str) -> st.SearchStrategy[Any]:
    """Values of one field, None among them."""
    kind.model_rebuild()
    return st.none() | _field(kind.model_fields[name])


def _field(field: FieldInfo) -> st.SearchStrategy[Any]:
    annotation: Any = field.annotation
    if field.metadata:
        annotation = Annotated[annotation, *field.metadata]
    return _of(annotation)


def _of(annotation: Any) -> st.SearchStrategy[Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _of(arguments[0]) if arguments[0] is not int else _integers(arguments[1:])
    if origin in (Union, UnionType):
        return st.one_of(*(_of(each) for each in arguments if each is not NoneType))
    if origin is list:
        return st.lists(_of(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(_of(arguments[0]), _of(arguments[1]), max_size=3)
    if annotation is bool:
        return st.booleans()
    if annotation is str:
        return NAMES
    if annotation is float:
        return st.floats(0, 1e6)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        assert issubclass(annotation, PolicyModel)
        return models(annotation)
    return st.sampled_from(list(annotation))


def _integers(metadata: tuple[Any, ...]) -> st.SearchStrategy[int]:
    bounds = [bound for each in metadata for bound in getattr(each, "metadata", [each])]
    low = next((each.ge for each in bounds if hasattr(each, "ge")), -(2**31))
    high = next((each.le for each in bounds if hasattr(each, "le")), 2**31 - 1)
    return st.integers(low, high)
