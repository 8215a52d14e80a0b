"""The row on GPUs; collapsed, since a job without GPUs has nothing to show in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from definitions.looks import (
    sorted_by,
)
from definitions.looks import (
    unit as unit_of,
)
from definitions.panels import (
    query,
    row,
    rows,
    table,
    timeseries,
)

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import dashboard as builder
    from grafana_foundation_sdk.cog.builder import Builder
    from grafana_foundation_sdk.models.dashboard import Panel


def gpu_row(node: str, rank: str = "") -> builder.Row:
    """The row, of the nodes selected, or of the one rank."""

    def of(metric: str) -> str:
        """A figure of each GPU, with its number on the node, by which people know it."""
        return _numbered(f"max by (node, gpu) ({metric})", node, rank)

    legend = "{{node}} GPU {{index}}"
    clock = f'hangwatch_gpu_clock_hertz{{{node},clock="sm"}}'
    throttled = f"sum by (reason) (hangwatch_gpu_throttled{{{node}}})"
    used = f"hangwatch_gpu_memory_used_bytes{{{node}}}"
    total = f"hangwatch_gpu_memory_total_bytes{{{node}}}"
    return row(
        "GPUs",
        [
            _gpus(node, rank),
            timeseries(
                "Utilisation",
                "Part of the time in which any kernel ran. A GPU whose rank hangs inside NCCL "
                "shows 100 %: the kernel of the collective spins. One that idles while the "
                "others are at 100 % is the one that they wait for.",
            )
            .unit("percentunit")
            .max(1)
            .with_target(query(of(f"hangwatch_gpu_utilization_ratio{{{node}}}"), legend)),
            timeseries("Memory in use", "Of what the GPU has.")
            .unit("percentunit")
            .max(1)
            .with_target(query(of(f"{used} / {total}"), legend)),
            timeseries(
                "SM clock",
                "A GPU that is slower than its peers makes all of them slow: look for one line "
                "below the others, and for its reason at the right.",
            )
            .unit("hertz")
            .with_target(query(of(clock), legend)),
            timeseries("Throttled GPUs", "How many GPUs run slower than they could, by reason.")
            .unit("short")
            .with_target(query(throttled, "{{reason}}")),
            timeseries("Temperature", "Of the GPU's die.")
            .unit("celsius")
            .with_target(query(of(f"hangwatch_gpu_temperature_celsius{{{node}}}"), legend)),
            timeseries(
                "Power",
                "A kernel that spins in NCCL takes less power than one that computes: a fall of "
                "all GPUs at 100 % utilisation is what a hang looks like.",
            )
            .unit("watt")
            .with_target(query(of(f"hangwatch_gpu_power_watts{{{node}}}"), legend)),
            timeseries(
                "Errors",
                "Xid events since the run was first watched, ECC and NVLink errors since the "
                "driver was loaded. Uncorrected ECC errors and most Xids end or hang the process "
                "that uses the GPU.",
            )
            .unit("short")
            .with_target(
                query(
                    f"sum by (node, gpu, xid) (hangwatch_gpu_xid_errors_total{{{node}}}) > 0",
                    "Xid {{xid}}, {{node}} {{gpu}}",
                )
            )
            .with_target(
                query(
                    f"sum by (node, gpu, kind) (hangwatch_gpu_ecc_errors_total{{{node}}}) > 0",
                    "ECC {{kind}}, {{node}} {{gpu}}",
                )
            )
            .with_target(
                query(
                    f"sum by (node, gpu) (hangwatch_gpu_nvlink_errors_total{{{node}}}) > 0",
                    "NVLink, {{node}} {{gpu}}",
                )
            ),
        ],
    )


def _numbered(figure: str, node: str, rank: str) -> str:
    """The figure with a label ``index``; of the GPU that the rank uses where one is given.

    What is measured of a whole GPU has no number where the GPU is divided (MIG), since only
    its parts are known by ``gpu_info``: then it is called by the beginning of its UUID.
    """
    info = f"max by (node, gpu, index) (hangwatch_gpu_info{{{node}}})"
    known = f"{figure} * on (node, gpu) group_left (index) {info}"
    if rank:
        used = f"max by (node, gpu) (hangwatch_gpu_rank_info{{{rank}}})"
        return f"{known} and on (node, gpu) {used}"
    divided = f"({figure} unless on (node, gpu) hangwatch_gpu_info{{{node}}})"
    return f'{known} or label_replace({divided}, "index", "$1", "gpu", "(.{{1,12}}).*")'


def _gpus(node: str, rank: str) -> Builder[Panel]:
    """Which GPU each rank has, and what is wrong with it."""
    ranks = f"max by (node, gpu, rank) (hangwatch_gpu_rank_info{{{rank or node}}})"
    info = f"max by (node, gpu, index, model) (hangwatch_gpu_info{{{node}}})"
    health = f"max by (node, gpu, health) (hangwatch_gpu_health{{{node}}} == 1)"
    rows_of = f'hangwatch_gpu_remapped_rows{{{node},kind=~"correctable|uncorrectable"}}'
    remapped = f"sum by (node, gpu) ({rows_of})"
    unreadable = f"max by (node, gpu) (hangwatch_gpu_unreadable{{{node}}})"
    columns = {
        "node": "Node",
        "index": "GPU",
        "rank": "Rank",
        "model": "Model",
        "health": "Health",
        "Value #D": "Rows remapped",
        "Value #E": "Unreadable",
        "gpu": "UUID",
    }
    return (
        table(
            "GPUs and their ranks",
            "The GPU of each rank. Two ranks with one GPU are a mistake in most jobs "
            "(LOCAL_RANK never used). Rows remapped: memory that the GPU has put out of use. "
            "Unreadable: figures that the driver did not give.",
            24,
            7,
            columns,
        )
        .targets(rows(ranks, info, health, remapped, unreadable))
        .override_by_name("Rows remapped", unit_of("short"))
        .sort_by(sorted_by("Node", descending=False))
    )
