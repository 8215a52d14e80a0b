"""Communication that goes round torch.distributed is named."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from hangwatch.agent.record.bypasses import Bypasses


def modules(*names: str) -> dict[str, ModuleType]:
    return {name: ModuleType(name) for name in names}


def test_an_engine_that_calls_nccl_by_itself_is_named_when_it_does() -> None:
    loaded: dict[Any, ModuleType] = {**modules("vllm", "vllm.distributed"), 7: ModuleType("odd")}
    bypasses = Bypasses(loaded)
    assert not bypasses.look()
    loaded |= modules("vllm.distributed.device_communicators.pynccl")
    assert bypasses.look()
    assert bypasses.found == ["what vllm sends through NCCL by itself (pynccl) is not seen"]
    loaded |= modules("json")
    assert not bypasses.look()
    assert len(bypasses.found) == 1


def test_communicators_of_torchcomms_are_named_when_the_program_makes_one() -> None:
    loaded = modules("torchcomms")  # a fake: there is no torchcomms on this machine
    fake: Any = loaded["torchcomms"]

    def new_comm(backend: str, device: str, name: str = "") -> tuple[str, str, str]:
        """Make one."""
        return backend, device, name

    fake.new_comm = of_torch = new_comm
    bypasses = Bypasses(loaded)
    assert not bypasses.look()
    assert of_torch("nccl", "cuda") == ("nccl", "cuda", "")  # what c10d has imported before
    assert not bypasses.look()
    assert fake.new_comm.__doc__ == "Make one."
    assert fake.new_comm("nccl", "cuda", name="mine") == ("nccl", "cuda", "mine")
    assert bypasses.look()
    assert bypasses.found == ["calls on communicators of torchcomms.new_comm() are not seen"]


def test_a_class_that_takes_over_torchs_functions_is_named() -> None:
    class ProcessGroup:
        def allreduce(self) -> None: ...

    class Passthrough(ProcessGroup):
        def all_reduce(self) -> None: ...

    class Quantized(Passthrough):
        def all_reduce(self) -> None: ...
        def all_gather_object(self) -> None: ...
        def broadcast(self) -> None: ...
        def helper(self) -> None: ...

    Passthrough.__module__ = "torch.distributed.custom_pg"
    c10d: Any = ModuleType("torch.distributed.distributed_c10d")
    c10d.__all__ = ["all_reduce", "all_gather_object", "broadcast", "new_group"]
    assert not Bypasses({}).take_over(Quantized, ProcessGroup, c10d)
    bypasses = Bypasses(modules("torch.distributed.custom_pg"))
    assert not bypasses.take_over(Passthrough, ProcessGroup, c10d)
    assert bypasses.take_over(Quantized, ProcessGroup, c10d)
    (said,) = bypasses.found
    assert "Quantized takes over from torch.distributed (all_gather_object, all_reduce)" in said
