"""Models made of a plain ``nn.Module``: a class or a function that returns a network."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, make_dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from robustfl.contracts.data import Model
from robustfl.contracts.norm import Norm
from robustfl.errors import Refused, RobustflError, UsageError, told
from robustfl.parameters import is_plain, param

Network = Callable[..., nn.Module]
_PLACE = "robustfl_model"
"""The attribute of a class or function that holds its model."""

GIVEN = {
    "shape": ("shape", "input_shape"),
    "channels": ("in_channels", "in_chans", "input_channels", "num_channels", "channels"),
    "classes": ("num_classes", "n_classes", "classes"),
    "norm_layer": ("norm_layer",),
}
"""What a network is built with, and the parameters of a class or function that receive it."""


def is_network(made: object) -> bool:
    """True for a class of ``nn.Module`` and for a function, which may return one."""
    return inspect.isfunction(made) or (isinstance(made, type) and issubclass(made, nn.Module))


class TorchModel(Model):
    """A model whose network is what a class or a function makes.

    Batch norm layers (``nn.BatchNorm1d``, ``nn.BatchNorm2d``) become those of the norm. Initial weights are those that
    the constructors set, also where they read them from a file or draw them from torch's global generator, which is
    seeded from the cell's seed.
    """

    _make: ClassVar[Network]
    _receives: ClassVar[Mapping[str, str]]

    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """The network. Raises ``Refused`` where it does not take such images, or returns no logits ``[b classes]``."""
        network = self._made(norm, shape, classes)
        self._check_logits(network, shape, classes)
        vars(network)["_rebuild"] = partial(self._made, norm, shape, classes, adapted=True)
        return network

    def initialise(self, network: nn.Module, generator: torch.Generator) -> None:
        """Set the weights to those of another construction, which draws from ``generator``."""
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network.load_state_dict(vars(network)["_rebuild"]().state_dict())

    def _made(self, norm: Norm, shape: tuple[int, int, int], classes: int, *, adapted: bool = False) -> nn.Module:
        known = {"shape": shape, "channels": shape[0], "classes": classes, "norm_layer": norm.layer}
        given = {name: known[what] for name, what in self._receives.items()}
        own = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        network = type(self)._make(**own, **given)
        if not isinstance(network, nn.Module):
            raise UsageError(f"model {self.name!r} returned a {type(network).__name__}, not a torch.nn.Module")
        for module in network.modules():
            if getattr(module, "inplace", False):
                vars(module)["inplace"] = False  # what a norm returns may be needed for its backward
        with_norm(network, norm)
        if adapted:
            norm.adapt(network)
        return network

    def _check_logits(self, network: nn.Module, shape: tuple[int, int, int], classes: int) -> None:
        modes = {module: module.training for module in network.modules()}
        hooks = [m.register_forward_hook(_note_positions) for m in modes if isinstance(m, nn.Linear)]
        like = next(network.parameters(), torch.empty(0))
        try:
            with torch.no_grad():
                logits = network.eval()(torch.zeros(2, *shape, dtype=like.dtype, device=like.device))
        except RobustflError:
            raise
        except Exception as error:
            raise Refused(f"model {self.name!r} does not take images of the shape {shape}: {told(error)}") from error
        finally:
            for module, training in modes.items():
                module.training = training
            for hook in hooks:
                hook.remove()
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        if found != (2, classes):
            hint = "" if "classes" in self._receives.values() else "; a parameter num_classes receives their number"
            raise Refused(
                f"model {self.name!r} returns {found} for 2 images {shape}; logits (2, {classes}) are expected{hint}"
            )


def _note_positions(layer: nn.Module, inputs: object, made: Tensor) -> None:
    """Note how many vectors of a sample a linear layer serves, for the engine's estimate of memory."""
    del inputs
    if made.dim() > 2:
        vars(layer)["positions"] = made[0].numel() // made.shape[-1]


def with_norm(network: nn.Module, norm: Norm) -> None:
    """Put layers of the norm in the place of batch norm layers, in place."""
    for module in list(network.modules()):
        for name, layer in module.named_children():
            if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
                setattr(module, name, norm.layer(layer.num_features))


def torch_model(make: Network) -> type[TorchModel]:
    """The model of a class of ``nn.Module``, or of a function that returns one.

    Of its parameters those in ``GIVEN`` receive what the data and the norm say; others with a plain default become the
    model's own. Raises ``UsageError`` for one without a default, and for one whose default is no plain data.
    """
    receiving = {name: what for what, names in GIVEN.items() for name in names}
    own, receives = [], dict[str, str]()
    for name, parameter in inspect.signature(make).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in receiving:
            receives[name] = receiving[name]
        elif hasattr(TorchModel, name):
            raise UsageError(f"{make.__name__}: {name!r} is a fact of every model; name the parameter differently")
        elif parameter.default is parameter.empty:
            known = "; ".join(f"{what}: {', '.join(names)}" for what, names in GIVEN.items())
            raise UsageError(
                f"{make.__name__}: as a model, its parameter {name!r} needs a default; those without one receive what "
                f"the data and the norm say ({known})"
            )
        elif not is_plain(parameter.default):
            raise UsageError(
                f"{make.__name__}: the default of {name!r} is a {type(parameter.default).__name__}; parameters are "
                "numbers, texts, None or tuples of these"
            )
        else:
            own.append((name, _type_of(parameter.default), param(parameter.default)))
    facts = {
        "_make": staticmethod(make), "_receives": receives, "__module__": make.__module__,
        "__doc__": vars(make).get("__doc__") or make.__doc__ or f"The network of {make.__qualname__}.",
    }  # fmt: skip
    made: type[TorchModel] = make_dataclass("Model", own, bases=(TorchModel,), namespace=facts, frozen=True)
    made.__qualname__ = f"{make.__qualname__}.{_PLACE}"  # where pickle finds it
    setattr(make, _PLACE, made)
    return made


def _type_of(default: Any) -> Any:
    """The type of a parameter with this default."""
    if default is None:
        return bool | int | float | str | None
    if isinstance(default, (list, tuple)):
        return tuple[(type(default[0]) if default else float), ...]  # type: ignore[misc]
    return type(default)
