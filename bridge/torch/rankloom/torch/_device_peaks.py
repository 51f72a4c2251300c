"""Devices, by what their data sheets say: what a roofline is made of."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Device:
    """A GPU or the like, which computes. Peaks are those of dense arithmetic."""

    name: str
    flops: Mapping[str, float]  # FLOP/s by the dtype of a product's operands: {"bfloat16": 989.4e12, ...}; of vectors, too: "float32"
    bytes_per_second: float  # of its memory
    memory: int = 0  # bytes; 0: not known
    source: str = ""


def _nvidia(half: float, eighth: float | None, tensor32: float, single: float) -> dict[str, float]:
    """Peaks in TFLOP/s."""
    peaks = {"bfloat16": half, "float16": half, "tfloat32": tensor32, "float32": single}
    if eighth is not None:
        peaks |= {"float8_e4m3fn": eighth, "float8_e5m2": eighth}
    return {dtype: peak * 1e12 for dtype, peak in peaks.items()}


_H100 = _nvidia(989.4, 1978.9, 494.7, 66.9)
_H100_SOURCE = "NVIDIA H100 Tensor Core GPU Architecture, appendix A: SXM5"

devices: dict[str, Device] = {
    device.name: device
    for device in (
        Device("a100_sxm_80gb", _nvidia(312, None, 156, 19.5), 2039e9, 80 * 10**9, "NVIDIA A100 80GB data sheet, SXM"),
        Device("h100_sxm", _H100, 3.35e12, 80 * 10**9, _H100_SOURCE),
        Device(
            "h100_sxm_hbm2e",
            _H100,
            2.4e12,
            96 * 10**9,
            f"{_H100_SOURCE}; memory: torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, 96 GB at 2.4 TB/s",
        ),
        Device("h200_sxm", _H100, 4.8e12, 141 * 10**9, "NVIDIA H200 data sheet, SXM"),
        Device("b200", _nvidia(2250, 4500, 1125, 75), 8e12, 180 * 10**9, "NVIDIA HGX B200 data sheet, one of eight, dense"),
        Device(
            "mi300x",
            _nvidia(1307.4, 2614.9, 653.7, 163.4),
            5.3e12,
            192 * 10**9,
            "AMD Instinct MI300X data sheet, without sparsity",
        ),
    )
}
"""Presets, by name: "h100_sxm", ..."""


def is_finite(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def checked_device(who: str, device: object) -> Device:
    """The device, or the preset of that name. Errors: ValueError."""
    names = ", ".join(sorted(devices))
    if isinstance(device, str):
        if device not in devices:
            raise ValueError(f"{who}: device is {device!r}, want a Device or one of the presets {names}")
        return devices[device]
    if not isinstance(device, Device):
        raise ValueError(f"{who}: device is {device!r}, want a Device or the name of a preset ({names})")
    if not isinstance(device.flops, Mapping):
        raise ValueError(f"{who}: device {device.name} has peaks {device.flops!r}, want FLOP/s by dtype, such as {{'float32': 1e12}}")
    for dtype, peak in device.flops.items():
        if not isinstance(dtype, str):
            raise ValueError(f"{who}: device {device.name} has a peak of {dtype!r}, want dtypes by their names, such as 'bfloat16'")
        if not (is_finite(peak) and peak > 0):
            raise ValueError(f"{who}: device {device.name} has {peak!r} FLOP/s of {dtype}, want more than 0")
    if "float32" not in device.flops:
        have = ", ".join(device.flops) or "none"
        raise ValueError(f"{who}: device {device.name} has peaks of {have}, want one of float32 among them")
    if not (is_finite(device.bytes_per_second) and device.bytes_per_second > 0):
        raise ValueError(f"{who}: device {device.name} has {device.bytes_per_second!r} bytes per second, want more than 0")
    if not (is_finite(device.memory) and device.memory >= 0):
        raise ValueError(f"{who}: device {device.name} has {device.memory!r} bytes of memory, want 0 or more")
    return device
