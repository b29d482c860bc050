"""Look at the installed wheel: its C kernels are the ones used, nothing is compiled, and a rule gives its result."""

from __future__ import annotations

import torch

import robustfl
from robustfl.kernels import compiling, native

native.compiled = lambda *given: False  # what would be compiled now is not the wheel's
found = native.library()
assert found is not None, "the wheel has no kernels for this machine"
assert "native-" in found._name, found._name
assert compiling.prebuilt(compiling.Path(native.__file__).parent, "DEFAULT") is not None
rows = torch.arange(30.0).reshape(5, 6)
assert torch.equal(robustfl.defense("median")(rows, f=1), rows[2])
print(f"robustfl {robustfl.__version__}: {found._name}")
