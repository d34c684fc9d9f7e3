"""A function's package: found out about and unpacked without ever running it.

`inspect_package` says whether a `.py`, `.zip`, `.whl` or cloudpickled function holds what the config names;
`unpack` lays it out for the function's process. Worker and host use both; neither imports user code.
"""

from magnetar.functions.packages.contents import PackageInfo, inspect_package
from magnetar.functions.packages.unpack import unpack

__all__ = ["PackageInfo", "inspect_package", "unpack"]
