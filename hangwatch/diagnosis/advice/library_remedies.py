"""The table of advice for what a program is built on: libraries, and parts of torch.

Data, not logic; the most specific rows first, since of one topic only the first is given.
"""

from __future__ import annotations

from hangwatch.diagnosis.advice.facts import Use
from hangwatch.diagnosis.advice.links import (
    ACCELERATE,
    CHECKPOINT,
    DDP,
    DEEPSPEED,
    DTENSOR,
    FSDP,
    JOIN,
    LIGHTNING,
    PIPELINE,
    TORCH,
    TRAINER,
    TUTORIALS,
)
from hangwatch.diagnosis.advice.remedy import Remedy
from hangwatch.types.kinds import Kind, Reason

_ALONE = (Kind.SUBSET_ENTERED,)
_APART = (Kind.SUBSET_ENTERED, Kind.OP_MISMATCH)
_MISMATCH = (Kind.OP_MISMATCH, Kind.SIGNATURE_MISMATCH)
_GATHERS = r"gather|gather_for_metrics|gather_object|reduce|pad_across_processes|broadcast"
OF_ACCELERATOR = (
    r"gather_for_metrics|gather|gather_object|reduce|wait_for_everyone|save_state|save_model"
    r"|get_state_dict|clip_grad_norm_"
)
_OF_TRAINER = r"evaluate|predict|save_model|save_state|_save_checkpoint|log_metrics|save_metrics"
_OF_ENGINE = r"save_checkpoint|save_16bit_model|load_checkpoint"
_OF_CHECKPOINT = r"async_save|save|load"
_OF_FSDP = (
    r"full_tensor|get_model_state_dict|get_optimizer_state_dict|get_state_dict|state_dict"
    r"|summon_full_params|clip_grad_norm_|optim_state_dict|full_optim_state_dict"
)
BY_LIBRARY: tuple[Remedy, ...] = (
    # --- Lightning ----------------------------------------------------------------------------
    Remedy(
        "move out",
        "self.log(..., sync_dist=True) is a collective: call it on all ranks; the logger writes "
        "on rank 0 alone anyway.",
        f"{LIGHTNING}/extensions/logging.html",
        kinds=_APART,
        uses=(Use.LIGHTNING,),
        call=r"log|log_dict",
    ),
    Remedy(
        "left out",
        "What is logged with sync_dist=True has to be logged on all ranks, in the same steps: "
        "{others} are in `{awaited}`.",
        f"{LIGHTNING}/extensions/logging.html",
        kinds=(Kind.OP_MISMATCH,),
        uses=(Use.LIGHTNING,),
        awaited=r"log|log_dict",
    ),
    Remedy(
        "move out",
        "`{call}` is for all ranks, also where only one of them writes: take it out of "
        "`rank_zero_only` and of conditions on the rank.",
        f"{LIGHTNING}/common/checkpointing_basic.html",
        kinds=_APART,
        uses=(Use.LIGHTNING,),
        call=r"save_checkpoint|validate|test|predict|all_gather|barrier|broadcast|reduce",
    ),
    Remedy(
        "batches",
        "Every rank needs as many batches: Lightning shards a map-style dataset by itself, an "
        "IterableDataset has to be split evenly by you; limit_train_batches and "
        "limit_val_batches cut what is left over.",
        f"{LIGHTNING}/common/trainer.html",
        kinds=(Kind.FINISHED_EARLY,),
        uses=(Use.LIGHTNING,),
    ),
    Remedy(
        "stop",
        "Ranks have to stop in the same step: monitor a metric that is logged with "
        "sync_dist=True, and set trainer.should_stop on all ranks alike.",
        f"{LIGHTNING}/common/early_stopping.html",
        kinds=(Kind.FINISHED_EARLY,),
        uses=(Use.LIGHTNING,),
    ),
    Remedy(
        "agree",
        "Where a callback or hook decides something on one rank (stop, skip, save), decide it for "
        "all: trainer.strategy.reduce_boolean_decision(), or a metric that is logged with "
        "sync_dist=True.",
        f"{LIGHTNING}/common/early_stopping.html",
        kinds=(Kind.OP_MISMATCH,),
        uses=(Use.LIGHTNING,),
    ),
    # --- Transformers -------------------------------------------------------------------------
    Remedy(
        "move out",
        "trainer.{call}() is for all processes, it gathers from each: call it on all, and guard "
        "only what you do with the result (trainer.is_world_process_zero()).",
        TRAINER,
        kinds=_APART,
        uses=(Use.TRANSFORMERS,),
        call=_OF_TRAINER,
    ),
    Remedy(
        "everyone",
        "To evaluate or save from a callback, set control.should_evaluate or "
        "control.should_save there, on all processes: the Trainer does it then, on all of them.",
        "https://huggingface.co/docs/transformers/main_classes/callback",
        kinds=_APART,
        uses=(Use.TRANSFORMERS,),
        call=_OF_TRAINER,
    ),
    Remedy(
        "generate",
        "Where parameters are sharded (ZeRO-3, FSDP) generate() has to run as many steps on all "
        "ranks: call it on each, with synced_gpus=True.",
        "https://huggingface.co/docs/transformers/main_classes/text_generation",
        kinds=(*_MISMATCH, Kind.SUBSET_ENTERED, Kind.NEVER_ENTERED, Kind.FINISHED_EARLY),
        uses=(Use.DEEPSPEED, Use.FSDP),
        call=r"generate",
    ),
    Remedy(
        "batches",
        "An IterableDataset has to give all processes as many batches: set max_steps, or "
        "dispatch_batches=True in accelerator_config, so that the first process hands them out.",
        TRAINER,
        kinds=(Kind.FINISHED_EARLY,),
        uses=(Use.TRANSFORMERS,),
    ),
    # --- Accelerate ---------------------------------------------------------------------------
    Remedy(
        "move out",
        "`{call}` is for all processes: call it on each of them, and keep only the print or the "
        "write under `accelerator.is_main_process`.",
        f"{ACCELERATE}/basic_tutorials/execution",
        kinds=_APART,
        uses=(Use.ACCELERATE,),
        call=OF_ACCELERATOR,
    ),
    Remedy(
        "left out",
        "`{awaited}`, where {others} are, is for all processes: call it on each of them, outside "
        "of conditions.",
        f"{ACCELERATE}/basic_tutorials/execution",
        kinds=(Kind.OP_MISMATCH,),
        uses=(Use.ACCELERATE,),
        awaited=OF_ACCELERATOR,
    ),
    Remedy(
        "first",
        "To let one process go first and the others after it, use "
        "`with accelerator.main_process_first():` on all of them.",
        f"{ACCELERATE}/package_reference/accelerator",
        kinds=_ALONE,
        uses=(Use.ACCELERATE,),
        call=r"wait_for_everyone",
    ),
    Remedy(
        "same tensor",
        "Before `gather`, bring tensors to one size with accelerator.pad_across_processes(); "
        "gather_for_metrics also drops what was added to the last batch.",
        f"{ACCELERATE}/package_reference/accelerator",
        kinds=(Kind.SIGNATURE_MISMATCH,),
        apart=False,
        uses=(Use.ACCELERATE,),
        call=_GATHERS,
    ),
    Remedy(
        "batches",
        "Pass the DataLoader through accelerator.prepare(), which gives all processes as many "
        "batches, or wrap the loop in `accelerator.join_uneven_inputs([model])` (with DDP).",
        f"{ACCELERATE}/package_reference/accelerator",
        kinds=(Kind.FINISHED_EARLY,),
        uses=(Use.ACCELERATE,),
        unless=(Use.TRANSFORMERS,),
    ),
    # --- DeepSpeed ----------------------------------------------------------------------------
    Remedy(
        "move out",
        "engine.{call}() has to be called on all ranks, not on rank 0 alone: each of them has a "
        "part of what is saved.",
        f"{DEEPSPEED}/model-checkpointing.html",
        kinds=_APART,
        uses=(Use.DEEPSPEED,),
        call=_OF_ENGINE,
    ),
    Remedy(
        "left out",
        "All ranks have to call `{awaited}`, where {others} are: each of them has a part of what "
        "is saved.",
        f"{DEEPSPEED}/model-checkpointing.html",
        kinds=(Kind.OP_MISMATCH,),
        uses=(Use.DEEPSPEED,),
        awaited=_OF_ENGINE,
    ),
    Remedy(
        "sharded",
        "With ZeRO-3 each module gathers its parameters from all ranks when it runs: an expert "
        "without tokens, or a branch, that only some ranks run stops them all. Have the block "
        "around it gathered as a whole: deepspeed.utils.set_z3_leaf_modules(model, [Block]) "
        "before deepspeed.initialize().",
        f"{DEEPSPEED}/zero3.html",
        kinds=_APART,
        uses=(Use.ZERO_3,),
        awaited=r"backward|pre_sub_module_\w+",  # not where step() is what was left out
    ),
    Remedy(
        "skipped step",
        "A rank may not leave out backward() or step() of the engine alone (a loss that is not "
        "finite, an exception): multiply its loss by 0 instead, or agree on it before.",
        f"{DEEPSPEED}/training.html",
        kinds=_MISMATCH,
        uses=(Use.DEEPSPEED,),
        awaited=r"backward|step",
    ),
    Remedy(
        "sharded",
        "With ZeRO-3 the forward pass itself gathers parameters from all ranks: evaluation, "
        "GatheredParameters and each module have to run on all of them, as often.",
        f"{DEEPSPEED}/zero3.html",
        kinds=_APART,
        uses=(Use.DEEPSPEED,),
    ),
    Remedy(
        "join",
        "Call forward, backward and step of the engine as often on all ranks: cut the loop at "
        "the least number of batches that any rank has.",
        f"{DEEPSPEED}/training.html",
        kinds=(Kind.FINISHED_EARLY,),
        uses=(Use.DEEPSPEED,),
    ),
    # --- Distributed checkpoint ---------------------------------------------------------------
    Remedy(
        "thread",
        "Give the checkpoint a group of its own: "
        'async_save(..., process_group=dist.new_group(backend="gloo")). In one group the calls of '
        "its thread and those of the training come in another order on each rank.",
        f"{TUTORIALS}/recipes/distributed_async_checkpoint_recipe.html",
        kinds=_APART,
        uses=(Use.ASYNC_CHECKPOINT,),
    ),
    Remedy(
        "move out",
        "`{call}` of torch.distributed.checkpoint is a collective: call it on all ranks, each "
        "reads or writes its own part.",
        CHECKPOINT,
        kinds=_APART,
        uses=(Use.CHECKPOINT,),
        call=_OF_CHECKPOINT,
    ),
    Remedy(
        "left out",
        "`{awaited}` of torch.distributed.checkpoint, where {others} are, is a collective: call "
        "it on all ranks, each reads or writes its own part.",
        CHECKPOINT,
        kinds=(Kind.OP_MISMATCH,),
        uses=(Use.CHECKPOINT,),
        awaited=_OF_CHECKPOINT,
    ),
    # --- FSDP, DTensor ------------------------------------------------------------------------
    Remedy(
        "move out",
        "`{call}` gathers sharded parameters from all ranks: call it on each of them, and write "
        "the result on one (StateDictOptions(full_state_dict=True, cpu_offload=True) keeps it "
        "on rank 0 alone).",
        FSDP,
        kinds=_APART,
        uses=(Use.FSDP,),
        call=_OF_FSDP,
    ),
    Remedy(
        "move out",
        "full_tensor() and redistribute() communicate: call `{call}` on all ranks of the "
        "tensor's mesh, and use the result on one.",
        DTENSOR,
        kinds=_APART,
        uses=(Use.DTENSOR,),
        call=r"full_tensor|redistribute|distribute_tensor",
    ),
    Remedy(
        "sharded",
        "With FSDP the forward pass itself gathers parameters from all ranks: evaluation and "
        "sampling have to run on all of them, as often.",
        FSDP,
        kinds=_ALONE,
        uses=(Use.FSDP,),
    ),
    Remedy(
        "accumulate",
        "Decide set_requires_gradient_sync() and no_sync() by the number of the step, alike on "
        "all ranks: with FSDP a rank that does not sync leaves out the reduce_scatter.",
        FSDP,
        kinds=_MISMATCH,
        uses=(Use.NO_SYNC,),
        unless=(Use.DDP,),
    ),
    Remedy(
        "join",
        "FSDP cannot be joined: cut the loop at the least number of batches that any rank has, "
        "or let ranks that have run out go on with an empty batch.",
        FSDP,
        kinds=(Kind.FINISHED_EARLY,),
        uses=(Use.FSDP,),
    ),
    # --- ZeroRedundancyOptimizer, Join, DistributedDataParallel -------------------------------
    Remedy(
        "move out",
        "consolidate_state_dict() gathers from all ranks: call it on each of them, and "
        "state_dict() after that on the one that writes.",
        f"{TORCH}/distributed.optim.html",
        kinds=_APART,
        uses=(Use.ZERO,),
        call=r"consolidate_state_dict",
    ),
    Remedy(
        "joined",
        "Join shadows what the model and the optimizer communicate, not a collective of your own "
        "in the loop: take it out of the loop, or write a Joinable for it.",
        JOIN,
        kinds=(*_MISMATCH, Kind.FINISHED_EARLY),
        uses=(Use.JOIN,),
    ),
    Remedy(
        "joined",
        "Join shadows what the model and the optimizer communicate, not a collective of your own "
        "in the loop: take it out of the loop, or write a Joinable for it.",
        JOIN,
        kinds=(Kind.DIED,),
        reasons=(Reason.SIGNAL,),
        uses=(Use.JOIN,),
    ),
    Remedy(
        "accumulate",
        "Decide no_sync() by the number of the batch, alike on all ranks: a rank that counts "
        "other batches leaves out the gradients' all_reduce.",
        DDP,
        kinds=_MISMATCH,
        uses=(Use.NO_SYNC,),
    ),
    Remedy(
        "hook",
        "The communication hook has to make the same collectives for each bucket on all ranks, "
        "whatever its gradients are.",
        f"{TORCH}/ddp_comm_hooks.html",
        kinds=_MISMATCH,
        uses=(Use.COMM_HOOK,),
    ),
    Remedy(
        "unused",
        "If a parameter gets no gradient on some ranks, construct DistributedDataParallel with "
        "find_unused_parameters=True: its buckets are reduced in an order that all have to keep.",
        DDP,
        kinds=(Kind.SIGNATURE_MISMATCH,),
        uses=(Use.DDP,),
        unless=(Use.JOIN, Use.COMM_HOOK, Use.NO_SYNC),
        call=r"backward",
        apart=False,
    ),
    Remedy(
        "skipped step",
        "A rank may not leave out a step alone (a loss that is not finite, out of memory): agree "
        "on it with an all_reduce of a flag before backward.",
        DDP,
        kinds=(Kind.OP_MISMATCH,),
        uses=(Use.DDP, Use.FSDP),
        awaited=r"backward",
    ),
    # --- Pipelines ----------------------------------------------------------------------------
    Remedy(
        "match",
        "All stages have to call step() of the schedule as often; the first is given the inputs "
        "and the last the target.",
        PIPELINE,
        kinds=(Kind.MISSING_PEER, Kind.ORDER_INVERSION, Kind.SUBSET_ENTERED),
        uses=(Use.PIPELINE,),
    ),
    Remedy(
        "schedule",
        "Construct the schedule alike on all stages: of the same class, with the same number of "
        "micro-batches.",
        kinds=(Kind.MISSING_PEER, Kind.ORDER_INVERSION),
        uses=(Use.PIPELINE,),
    ),
    Remedy(
        "batches",
        "All stages have to call step() of the schedule as often: let the number of steps not "
        "depend on the data, which only the first and the last stage read.",
        PIPELINE,
        kinds=(Kind.FINISHED_EARLY,),
        uses=(Use.PIPELINE,),
    ),
)
