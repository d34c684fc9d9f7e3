"""Who may do what."""

from __future__ import annotations

import pytest

from magnetar.security.authorizer import CLUSTER, Action, AllowAll, Authorizer, SuperUsersOnly
from magnetar.security.errors import Forbidden, SecurityError


@pytest.mark.parametrize("action", Action)
async def test_allow_all_allows_all(action: Action) -> None:
    authorizer: Authorizer = AllowAll()
    await authorizer.authorize(None, action, "persistent://public/default/t")
    await authorizer.authorize("anyone", action, CLUSTER)


async def test_super_users_may_and_others_are_told_what_they_may_not() -> None:
    authorizer: Authorizer = SuperUsersOnly(["root"])
    await authorizer.authorize("root", Action.ADMINISTER_CLUSTER, CLUSTER)
    with pytest.raises(Forbidden, match=r"role 'eve' is not allowed to administer tenant on public"):
        await authorizer.authorize("eve", Action.ADMINISTER_TENANT, "public")
    with pytest.raises(SecurityError, match="an anonymous client is not allowed to produce on"):
        await authorizer.authorize(None, Action.PRODUCE, "persistent://public/default/t")
