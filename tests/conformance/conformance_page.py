"""Makes docs/conformance.md of what run_conformance.py measured."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

NAMES = {"vendor": "the vendor's wheel", "ours": "this project's adapter"}
SETS = {
    "runtime": "Ascend/pytorch `test/npu`",
    "operators": "Ascend/op-plugin `test/test_base_ops`",
    "fused": "Ascend/op-plugin `test/test_custom_ops`",
}

HEAD = """# Conformance

The vendor's own test files, on `cann_host`, with two plug-ins: the unmodified `torch-npu==2.13.0` from PyPI, and this
project's adapter. The files are read from checkouts and are not part of this project; their revision is later than the
wheel's, so that a few of them ask for functions that the wheel does not have.

```sh
export ASCEND_PYTORCH=…/pytorch ASCEND_OP_PLUGIN=…/op-plugin     # checkouts of github.com/Ascend
make conformance                 # the wheel, in an environment of its own; also the smoke set of tests/conformance
make conformance ADAPTER=ours
make conformance CONFORMANCE="--set operators --sample 60 --soc Ascend950"     # a part
make conformance CONFORMANCE="--set operators --preload"     # faster: forks of one process
```

One process runs one file, for a limited time. A file passes if a test of it passed and none failed; a file whose tests
were all skipped counts as skipped. A file that takes longer than its limit fails, which on a busy machine is no
judgement of it. In a process that ended early, the test that was running counts as failed and the
ones after it as not run.
"""


def kind(tests: dict[str, list[str]]) -> str:
    """What a file counts as."""
    outcomes = {outcome for outcome, _ in tests.values()}
    if "failed" in outcomes:
        return "failed"
    return "passed" if "passed" in outcomes else "skipped"


# What the text of a failure says in a few words, first match first.
CAUSES = (
    (r"(aclnn\w+) or aclnn\w+GetWorkspaceSize not in|(aclnn\w+)GetWorkspaceSize not (?:found|in)", "no operator {}"),
    (r"(aclnn\w+): argument '(\w+)' is (\w+); this operator takes", "{}: {} may not be {}"),
    (r"(aclnn\w+): ([^\n]+)", "{}: {}"),
    (
        r"has no legacy operator (\w+)",
        "no legacy operator {}",
    ),
    (r"Expected all tensors to be on the same device", "expects the message of an earlier PyTorch"),
    (r"(?:has no|does not have the) attribute '(\w+)'", "no {}"),
    (r"No module named '([\w.]+)'", "no module {}"),
    (r"Tensor-likes are not|not equal to tolerance|not within tolerance|Scalars are not|differ", "other values"),
    (r"^AssertionError: ?([^\n]*)", "assertion: {}"),
)


# Tests that cannot pass with the vendor's wheel for reasons outside of cann_host.
OUTSIDE = {
    "test_paged_attention_aclgraph_update": "an operator of ATB, whose interface is C++",
    "test_legacy_load_maplocation_map_kind_none": "expects an error that only later versions of the plug-in raise",
    "test_d2d_copy3": "needs 32 GiB of memory",
    "test_quant_int8_rms_norm": "an operator of ATB, whose interface is C++",
    "test_ceil_integer_identity_npu": "needs a later version of the plug-in",
    "test_lstm_packed_fallback": "needs a later version of the plug-in",
    "test_batchnorm_backward.py": "compares gradients that are zero but for rounding",
    "test_bounding_box_encode.py": "expects the NPU's arithmetic in float16",
    "test_prompt_flash_attention.py": "its reference rounds the scores of attention to float16",
    "test_foreach_add_list.py": "its reference rounds twice, cann_host once",
    "test_foreach_sub_list.py": "its reference rounds twice, cann_host once",
    "test_foreach_addcdiv_scalar_list.py": "its reference rounds twice, cann_host once",
    "test_foreach_addcdiv_tensor.py": "its reference rounds twice, cann_host once",
    "test_foreach_addcmul_scalar_list.py": "its reference rounds twice, cann_host once",
    "test_format_cast.py": "expects internal formats, which the plug-in turns off by default",
    "test_per_tensor_30_30_30_30_30_30_0p01_5_quint8": "needs more memory than the machine has",
    "test_reciprocal_shape_format_fp32_4d": "longer than its limit on a busy machine",
    "test_mode0_on_ascend950": "needs a later version of the plug-in",
    "test_mode1_on_ascend950": "needs a later version of the plug-in",
    "test_mode_invalid": "needs a later version of the plug-in",
}

# What this project's adapter does otherwise or has no counterpart for, by test or by file.
OTHERWISE = {
    "test_d2d_copy3": "needs 32 GiB of memory",
    "test_graph_tree.py": "the vendor's private copy of PyTorch's CUDA graph trees",
    "test_dispatcher_fallback_default_and_explicitly_allowed": "fallbacks are reported, without a warning each",
    "test_sparse_csr_prod_fallback_default_and_explicitly_allowed": "fallbacks are reported, without a warning each",
    "test_sparse_csr_sum_fallback_default_and_explicitly_allowed": "fallbacks are reported, without a warning each",
    "test_multi_devices_single_process.py": "its reference rounds the scores of attention to float16",
    "test_npu_format.py": "private memory formats but FRACTAL_NZ stay plain here",
    "test_deepcopy": "private memory formats but FRACTAL_NZ stay plain here",
    "test_save_npu_format": "private memory formats but FRACTAL_NZ stay plain here",
    "test_tensor_set_with_new_storage": "FRACTAL_NZ is a layout here, and not turned off by default",
    "test_contiguous": "channels_last is supported here, and not refused",
    "test_storage_method": "float64 is supported here, and not turned into float32",
    "test_legacy_load_maplocation_map_kind_none": "the old file format is supported here, and not refused",
    "test_adaptive_avg_pool2d_backward.py": "PyTorch's message, and not the plug-in's own",
    "test_all.py": "PyTorch's IndexError, and not a RuntimeError",
    "test_norm.py": "PyTorch's IndexError, and not a RuntimeError",
    "test_batch_norm_reduce.py": "a ValueError, and not a RuntimeError",
    "test_binary_cross_entropy_with_logits_backward.py": "its gradient is composed of steps in float16",
    "test_index_put.py": "indices on the device for a tensor on the CPU are refused, as by PyTorch's devices",
    "test_native_batch_norm.py": "without training there are no statistics, as on PyTorch's devices",
    "test_one_hot.py": "one_hot gives int64, as PyTorch's does",
    "test_pack_padded_sequence.py": "it expects padding among the packed rows",
    "test_pad_packed_sequence.py": "it relies on total_length being ignored",
    "test_quantize_per_channel.py": "no quantized tensors, which PyTorch is about to take away",
    "test_quantize_per_tensor.py": "no quantized tensors, which PyTorch is about to take away",
    "test_sign_bits_unpack.py": "the test needs an earlier NumPy",
    "test_thnn_conv_depthwise2d_forward.py": "it compares modules with different random biases",
    "test_npu_ffn.py": "its reference rounds to float16 between the steps",
    "test_npu_grouped_matmul_group_list_none": "lists are groups by themselves, and not refused",
    "test_npu_grouped_matmul_invalid_group_type": "a ValueError, and not a RuntimeError",
    "test_npu_moe_re_routing.py": "it counts more rows than there are",
    "test_npu_nsa_select_attention.py": "its reference rounds the weights of attention to float16",
    "test_exponential_no_zero": "draws 5e10 numbers, for longer than its limit",
    "test_npu_gather_sparse_index": "draws integers from a normal distribution, which PyTorch refuses",
    "test_mm_all_reduce_base_add.py": "its processes may end before the parent has read their tensors",
    "test_quant_mm_all_reduce_base.py": "its processes may end before the parent has read their tensors",
    "test_quant_mm_all_reduce_base_bf16.py": "its processes may end before the parent has read their tensors",
    "test_npu_flash_attention_tensor_with_dropmask_graph": "dropout of npu_fusion_attention cannot be recorded",
    "test_npu_flash_attention_tensor_tnd_with_dropmask": "dropout of npu_fusion_attention cannot be recorded",
    "test_npu_swi_glu.py": "two in ten thousand results are the neighbouring bfloat16",
    "test_npu_swi_glu_backward.py": "two in ten thousand results are the neighbouring bfloat16",
    "test_rotary_mul_error_param": "a ValueError, and not a RuntimeError",
    "test_viewcopy.py": "operators of CANN's are events of the device, and not of the CPU",
}
KNOWN = {
    "vendor": {name: f"outside of cann_host: {why}" for name, why in OUTSIDE.items()},
    "ours": OUTSIDE | OTHERWISE,
}


def cause(text: str) -> str:
    """The reason of a failure in a few words."""
    for pattern, words in CAUSES:
        found = re.search(pattern, text)
        if found:
            return shortened(words.format(*[group for group in found.groups() if group is not None], *[""] * 3))
    return shortened(text)


def shortened(text: str) -> str:
    line = " ".join(text.split())
    line = line if len(line) <= 110 else line[:107] + "..."
    return line.replace("|", "\\|").replace("<", "&lt;")


def percent(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.0f} %)" if whole else "0"


def table_of(runs: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| test files | plug-in | product | files | pass whole | fail | skipped | tests passed | failed | skipped |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        files = run["files"]
        kinds = [kind(file["tests"]) for file in files]
        outcomes = [outcome for file in files for outcome, _ in file["tests"].values()]
        considered = len(files) - kinds.count("skipped")
        name = SETS[run["set"]]
        if run["sample"]:
            name += f", {run['sample']} of {run['of']} files at random"
        elif len(files) < run["of"]:
            name += f", {len(files)} of {run['of']} files"
        lines.append(
            f"| {name} | {NAMES[run['adapter']]} | {run['soc']} | {len(files)} "
            f"| {percent(kinds.count('passed'), considered)} | {kinds.count('failed')} | {kinds.count('skipped')} "
            f"| {outcomes.count('passed')} | {outcomes.count('failed')} | {outcomes.count('skipped')} |"
        )
    return [*lines, "", "Per cent are of the files that were not skipped.", ""]


def subjects_of(run: dict[str, Any]) -> list[str]:
    """Files of the runtime by subject."""
    counts: dict[str, list[str]] = defaultdict(list)
    for file in run["files"]:
        counts[file["subject"]].append(kind(file["tests"]))
    lines = ["| subject | files | pass whole | fail | skipped |", "|---|---|---|---|---|"]
    for subject, kinds in counts.items():
        passed, failed, skipped = (kinds.count(k) for k in ("passed", "failed", "skipped"))
        lines.append(f"| {subject} | {len(kinds)} | {passed} | {failed} | {skipped} |")
    return [*lines, ""]


def failures_of(run: dict[str, Any]) -> list[str]:
    lines = ["| file | test | cause |", "|---|---|---|"]
    for file in run["files"]:
        for test, (outcome, text) in file["tests"].items():
            name = test.rsplit(".", 1)[-1]
            if outcome == "failed":
                known = KNOWN[run["adapter"]]
                words = known.get(name) or known.get(file["file"]) or cause(text)
                lines.append(f"| {file['file']} | {name} | {words} |")
    return [*lines, ""]


def page(measured: list[Path]) -> str:
    """The text of docs/conformance.md, of files that run_conformance.py wrote."""
    runs = [json.loads(path.read_text()) for path in measured]
    runs.sort(key=lambda run: (run["set"] != "runtime", run["soc"], run["adapter"] != "vendor"))
    lines = [HEAD, *table_of(runs)]
    for run in runs:
        title = f"{NAMES[run['adapter']]}, {run['set']}, {run['soc']}"
        lines.append(f"## {title[0].upper()}{title[1:]}\n")
        if run["set"] == "runtime":
            lines += subjects_of(run)
        lines += failures_of(run)
    return "\n".join(lines).rstrip() + "\n"
