"""Writes a Hugging Face folder again with its linear layers in 8 or 4 bits, as vLLM reads them on CPUs.

argv[1] is the folder in BF16, argv[2] the new one, argv[3] "int8" or "int4": compressed-tensors with a scale a channel
and activations in 8 bits that are scaled as they come (W8A8), or with a scale for 128 weights (W4A16). Rounded to
nearest: the speed is asked for, and the weights are random anyway. The output head stays in BF16, as is usual.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

source, target, kind = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
group_size = 128


def int8(name, weight):
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    rounded = (weight / scale).round().clamp(-127, 127).to(torch.int8)
    return {f"{name}.weight": rounded, f"{name}.weight_scale": scale.to(torch.bfloat16)}


def int4(name, weight):
    rows, columns = weight.shape
    groups = weight.view(rows, columns // group_size, group_size)
    scale = groups.abs().amax(dim=2, keepdim=True) / 7
    nibbles = ((groups / scale).round().clamp(-8, 7) + 8).to(torch.int32).view(rows, columns // 8, 8)
    packed = torch.zeros(rows, columns // 8, dtype=torch.int32)
    for place in range(8):
        packed |= nibbles[:, :, place] << (4 * place)
    return {
        f"{name}.weight_packed": packed,
        f"{name}.weight_scale": scale.squeeze(2).to(torch.bfloat16),
        f"{name}.weight_shape": torch.tensor([rows, columns]),
    }


kinds = {
    "int8": (
        int8,
        "int-quantized",
        {
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True},
        },
    ),
    "int4": (
        int4,
        "pack-quantized",
        {
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": group_size,
                "dynamic": False,
            }
        },
    ),
}
quantized, layout, scheme = kinds[kind]
target.mkdir()
for file in source.iterdir():
    if file.suffix != ".safetensors":
        shutil.copy(file, target / file.name)
tensors = {}
for file in source.glob("*.safetensors"):
    for name, tensor in load_file(file).items():
        if name.endswith("_proj.weight"):
            tensors |= quantized(name.removesuffix(".weight"), tensor.float())
        else:
            tensors[name] = tensor
save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
config = json.loads((target / "config.json").read_text())
config["quantization_config"] = {
    "quant_method": "compressed-tensors",
    "format": layout,
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], **scheme}},
}
(target / "config.json").write_text(json.dumps(config, indent=2))
