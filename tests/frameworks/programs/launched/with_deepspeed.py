"""A loop of DeepSpeed; with ``--stall`` rank 1 does not come back from a step."""

import argparse
import time

import deepspeed
import torch

# What it would compile at its first use takes a minute.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "SGD", "params": {"lr": 1e-3}},
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stall", action="store_true")
    parser.add_argument("--local_rank", type=int)
    stall = parser.parse_args().stall
    deepspeed.init_distributed("gloo")
    rank = torch.distributed.get_rank()
    model = torch.nn.Linear(4, 1)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=CONFIG
    )
    for step in range(10):
        while stall and (step, rank) == (3, 1):
            time.sleep(0.1)  # culprit
        engine.backward(engine(torch.rand(1, 4)).sum())
        engine.step()
    torch.distributed.barrier()
    print(f"done {rank} of {torch.distributed.get_world_size()}", flush=True)


main()
