"""The catalogue of folds, row by row: the operators that make each row true and the tests that draw its dimensions.

Every row has a property test that compares with an evaluation in float64 that is none of the package's; every operator
with a rule belongs to a row, and each reason has a graph that gives it (tests/rewrite/affine/test_refusals.py).
What a test draws stands in its strategy: ranks, groups, strides, dilations, uneven and automatic padding, absent and
unnamed biases, alpha, beta, orientations and shapes of C of a Gemm, stacks of matrices, and the type of the weights.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from normdeploy.rewrite.gauge.rules import RULES

HERE = Path(__file__).parent

ASKED = {"Shape", "Size", "DequantizeLinear"}
"""Operators without a rule that the rules look at: readers of a shape, and what stores weights in integers."""


@dataclass(frozen=True)
class Row:
    """One row of the catalogue.

    Args:
        drawn: property tests, as "file::test".
        shown: tests of single cases and of refusals that give no reason.
        operators: what the engine's rules hold for it.
    """

    drawn: tuple[str, ...]
    shown: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


CONV, PRODUCTS = "affine/test_absorb_conv.py", "affine/test_absorb_products.py"
POINTWISE, SHAPE = "affine/test_cross_pointwise.py", "affine/test_cross_shape.py"
BOTH_WAYS = "affine/test_both_ways.py"
NORMS, CORNERS, QUANTIZED = (f"affine/test_{name}.py" for name in ("absorb_norms", "corners", "absorb_quantized"))
BORDER, PARALLEL = "branches/test_border.py", "branches/test_parallel.py"
SERIAL, LINEAR = "branches/test_serial.py", "branches/test_linear_branches.py"

BEFORE = {
    "Conv, any rank, groups, dilation, with or without bias": Row(
        (f"{CONV}::test_behind_a_conv",), (f"{CONV}::test_weights_are_rounded_once",), ("Conv",)
    ),
    "ConvTranspose, groups": Row((f"{CONV}::test_behind_a_transposed_conv",), (), ("ConvTranspose",)),
    "DeformConv": Row((f"{CONV}::test_around_a_deformable_conv",), (), ("DeformConv",)),
    "Gemm (alpha, beta, transA, transB, C absent or any broadcast shape)": Row(
        (f"{PRODUCTS}::test_behind_a_gemm", f"{PRODUCTS}::test_rows_of_a_gemm_go_into_a_constant_a"),
        (f"{PRODUCTS}::test_gemm_refusals",),
        ("Gemm",),
    ),
    "Einsum of data with a constant": Row(
        ("test_einsum.py::test_maps_in_front_of_it_and_behind_it_fold",),
        ("test_einsum.py::test_what_an_equation_becomes",),
    ),
    "Einsum of computed values": Row(
        ("gauge/test_openings.py::test_a_scale_passes_an_einsum_of_computed_values",),
        ("gauge/test_openings.py::test_a_shift_does_not_pass_an_einsum_of_computed_values",),
        ("Einsum",),
    ),
    "Heads merged with samples of any number": Row(
        ("gauge/test_merged_heads.py::test_whatever_stands_between_merging_and_parting",),
        ("gauge/test_merged_heads.py::test_a_norm_behind_merged_heads_goes_into_what_writes_their_values",),
        ("Reshape",),
    ),
    "MatMul by a constant (left or right, batched) + Add": Row(
        (f"{PRODUCTS}::test_behind_a_matmul", f"{PRODUCTS}::test_a_map_along_any_axis_beside_a_matmul"),
        (f"{PRODUCTS}::test_matmul_refusals",),
        ("MatMul",),
    ),
    "Gather from a constant table; a row-wise norm of a gathered row is the norm of the table": Row(
        (
            f"{PRODUCTS}::test_behind_an_embedding",
            "affine/test_row_norm.py::test_an_embedding_norm_goes_into_the_table",
        ),
        ("affine/test_row_norm.py::test_refusals",),
    ),
    "Conv or Linear whose weight is used elsewhere": Row(
        (f"{PRODUCTS}::test_a_weight_that_two_operators_read_is_copied_or_stays",),
        (f"{PRODUCTS}::test_a_large_table_that_a_head_shares_is_not_copied_for_a_small_pass",),
    ),
}

AFTER = {
    "Conv without padding; Gemm; MatMul by a constant": Row(
        (
            "affine/test_offset.py::test_a_norm_is_folded_forward_where_its_inputs_are_near_zero",
            f"{CONV}::test_in_front_of_a_conv_without_padding",
            f"{CONV}::test_a_scale_in_front_of_a_transposed_conv",
            f"{CONV}::test_a_shift_in_front_of_a_one_tap_transposed_conv",
            f"{PRODUCTS}::test_in_front_of_a_gemm",
            f"{PRODUCTS}::test_in_front_of_a_matmul",
            f"{PRODUCTS}::test_a_map_of_the_rows_crosses_a_product_by_a_constant",
        ),
        (f"{CORNERS}::test_a_weight_computed_at_run_time_on_either_side",),
    ),
    "recurrent operators": Row(
        ("affine/test_absorb_recurrent.py::test_in_front_of_a_recurrent_operator",),
        (),
        ("LSTM", "GRU", "RNN"),
    ),
    "the same through Flatten/Reshape (BN neck before a classifier)": Row(
        (f"{SHAPE}::test_batch_norm_before_a_flattened_classifier",),
        ("blocks/test_convnets.py::test_a_norm_before_a_classifier",),
    ),
    "Conv with zero padding": Row(
        (f"{CONV}::test_a_scale_in_front_of_a_padded_conv", f"{BORDER}::test_the_border_map_is_exact"),
        (f"{BORDER}::test_what_does_not_pay_or_is_not_exact_stays",),
    ),
    "BN/Mul/Add before LayerNorm, softmax scale, attention scale": Row(
        (
            f"{NORMS}::test_one_positive_scale_in_front_of_a_norm",
            f"{PRODUCTS}::test_a_scale_of_attention_scores_goes_into_the_query_projection",
        ),
    ),
}

CROSSING = {
    "Transpose, Reshape, Flatten, Squeeze, Unsqueeze, Expand": Row(
        (
            f"{SHAPE}::test_transposes",
            f"{SHAPE}::test_groups_of_a_reshape_are_consecutive_and_as_large_on_both_sides",
            f"{SHAPE}::test_channel_shuffle",
            f"{SHAPE}::test_squeeze_and_unsqueeze",
            f"{SHAPE}::test_expand",
            f"{CORNERS}::test_in_front_of_an_expand",
            f"{SHAPE}::test_tile",
            f"{CORNERS}::test_behind_a_tile",
            f"{SHAPE}::test_depth_to_space",
            f"{SHAPE}::test_space_to_depth",
        ),
        (f"{SHAPE}::test_six_by_six",),
        (
            "Transpose",
            "Reshape",
            "Flatten",
            "Squeeze",
            "Unsqueeze",
            "Expand",
            "Tile",
            "DepthToSpace",
            "SpaceToDepth",
        ),
    ),
    "Concat, Split, Slice, Gather, GatherElements, GatherND on an axis": Row(
        (
            f"{SHAPE}::test_concat_behind",
            f"{SHAPE}::test_concat_in_front",
            f"{SHAPE}::test_scaling_the_queries_goes_into_the_joint_projection",
            f"{SHAPE}::test_slices_in_front",
            f"{SHAPE}::test_a_split_in_front_of_two_convolutions",
        ),
        (f"{CORNERS}::test_selections_along_a_dynamic_axis",),
        ("Concat", "Split", "Slice", "Gather", "GatherElements", "GatherND"),
    ),
    "Add (residual)": Row(
        (
            f"{POINTWISE}::test_residual_sums",
            f"{POINTWISE}::test_a_value_that_all_its_readers_want_mapped",
            f"{POINTWISE}::test_products_of_computed_values",
            f"{CORNERS}::test_the_operand_that_can_takes_the_shift",
            "affine/test_diamonds.py::test_branches_that_meet",
            f"{BOTH_WAYS}::test_a_shift_goes_aside_in_a_sum",
            "affine/test_recognise.py::test_any_chain_is_one_map",
        ),
        ("affine/test_diamonds.py::test_what_does_not_cross",),
        ("Add", "Sub", "Sum", "Mul", "Div", "Affine"),
    ),
    "AveragePool, GlobalAveragePool, ReduceMean over other axes, Resize, GridSample; MaxPool": Row(
        (
            f"{POINTWISE}::test_pools",
            f"{POINTWISE}::test_reductions",
            f"{POINTWISE}::test_resize",
            f"{CORNERS}::test_a_reduction_over_nothing_or_everything",
        ),
        (
            f"{POINTWISE}::test_order_reversing_channels_block_a_maximum",
            "gauge/test_openings.py::test_a_norm_passes_a_sampling_at_computed_places",
        ),
        (
            "AveragePool",
            "GlobalAveragePool",
            "MaxPool",
            "GlobalMaxPool",
            "ReduceMean",
            "ReduceSum",
            "ReduceMax",
            "ReduceMin",
            "Resize",
            "GridSample",
        ),
    ),
    "Pad": Row(
        (f"{POINTWISE}::test_pads_that_repeat_values", f"{POINTWISE}::test_pads_with_a_constant"),
        (f"{POINTWISE}::test_pad_refusals",),
        ("Pad",),
    ),
    "Relu, LeakyRelu, PRelu": Row(
        (f"{POINTWISE}::test_homogeneous_activations", f"{POINTWISE}::test_clip", f"{SHAPE}::test_negation"),
        (f"{POINTWISE}::test_activation_refusals",),
        ("Relu", "LeakyRelu", "PRelu", "Clip", "Neg"),
    ),
    "Pow, Sqrt, Reciprocal, and on which side of 0 values are": Row(
        (
            "gauge/test_rules.py::test_what_a_rule_allows_computes_the_same",
            "gauge/test_rules.py::test_what_a_rule_forbids_contradicts",
        ),
        (
            "gauge/test_powers_and_signs.py::test_a_scale_passes",
            "gauge/test_powers_and_signs.py::test_what_stays",
        ),
        ("Pow", "Sqrt", "Reciprocal", "Sign", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
    ),
    "Abs, Max, Min, Where, Mean, Col2Im, sizes of vectors, the shift of Softmax and ReduceLogSumExp": Row(
        (
            "gauge/test_rules.py::test_what_a_rule_allows_computes_the_same",
            "gauge/test_rules.py::test_what_a_rule_forbids_contradicts",
        ),
        (
            "gauge/test_attacked.py::test_maxout",
            "gauge/test_attacked.py::test_where_beside_a_constant",
            "gauge/test_attacked.py::test_a_mean_of_windows_of_two_sizes",
            "gauge/test_attacked.py::test_absolute_values",
            "gauge/test_attacked.py::test_a_mean_of_branches",
            "gauge/test_attacked.py::test_a_scale_of_channels_passes_col2im",
            "gauge/test_attacked.py::test_a_shift_passes_the_logarithm_of_a_sum",
        ),
        (
            *("Abs", "Max", "Min", "Where", "Mean", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "Softmax", "LogSoftmax"),
            "Col2Im",
        ),
    ),
    "ReverseSequence, Compress, Trilu, CumSum, TopK, ArgMax, ArgMin, Hardmax, LpPool, GlobalLpPool": Row(
        (
            "gauge/test_rules.py::test_what_a_rule_allows_computes_the_same",
            "gauge/test_rules.py::test_what_a_rule_forbids_contradicts",
        ),
        ("gauge/test_attacked.py::test_a_norm_behind_what_is_rare",),
        (
            *("ReverseSequence", "Compress", "Trilu", "CumSum", "TopK", "ArgMax", "ArgMin", "Hardmax", "LpPool"),
            "GlobalLpPool",
        ),
    ),
    "ScatterElements, ScatterND with every reduction, and the zeros or infinities that they begin with": Row(
        (
            "gauge/test_rules.py::test_what_a_rule_allows_computes_the_same",
            "gauge/test_rules.py::test_what_a_rule_forbids_contradicts",
        ),
        (
            "gauge/test_scatter.py::test_a_norm_behind_a_graph_convolution_folds",
            "gauge/test_scatter.py::test_what_stays",
        ),
        ("ScatterElements", "ScatterND", "ConstantOfShape"),
    ),
    "Identity, Dropout in evaluation, Cast between floats": Row(
        (f"{POINTWISE}::test_identity_and_dropout",),
        (f"{POINTWISE}::test_casts", f"{POINTWISE}::test_a_reader_of_the_shape_is_no_reader"),
        ("Identity", "Dropout", "Cast", "Shape", "Size"),
    ),
}

BRANCHES = {
    "sum of convolutions of one input, identity, affine and average-pool branches": Row(
        (
            f"{PARALLEL}::test_a_sum_of_convolutions_is_one",
            f"{PARALLEL}::test_identity_affine_and_pool_branches_are_kernels",
            f"{LINEAR}::test_a_sum_of_matmuls_is_one",
            f"{LINEAR}::test_a_sum_of_gemms_is_one_whatever_their_attributes",
            f"{PARALLEL}::test_a_sum_of_transposed_convolutions_is_one",
            "branches/test_pads.py::test_narrow_kernels_that_read_less_of_a_picture_are_in_the_whole_one",
        ),
        (f"{PARALLEL}::test_what_is_not_exact_or_does_not_pay_stays", f"{LINEAR}::test_what_is_not_exact_stays"),
    ),
    "1x1 then kxk without anything in between": Row(
        (f"{SERIAL}::test_a_point_and_a_wide_convolution_are_one",),
        (f"{SERIAL}::test_what_is_not_exact_or_does_not_pay_stays",),
    ),
    "Conv weight behind weight_norm, spectral_norm or weight standardization": Row(
        ("weights/test_evaluate_constants.py::test_a_normalized_weight_is_its_float64_value_rounded_once",),
        ("weights/test_evaluate_constants.py::test_a_parametrized_convolution_of_torch_becomes_a_plain_one",),
    ),
}

STATISTICS = {
    "LayerNorm, RMSNorm, GroupNorm, InstanceNorm in any spelling": Row(
        (
            "recognise/test_random_spellings.py::test_random_spelling_is_recognised",
            "recognise/test_random_spellings.py::test_one_flaw_and_it_stays_as_written",
            f"{NORMS}::test_behind_a_norm",
        ),
        ("recognise/test_near_misses.py::test_near_miss_computes_what_it_computed",),
        ("LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization"),
    ),
}

OPENINGS = {
    "BatchNorm before a zero-padded convolution": Row((f"{BORDER}::test_the_border_map_is_exact",)),
    "Add(a, b) -> affine; Concat -> affine": Row((f"{POINTWISE}::test_residual_sums", f"{SHAPE}::test_concat_behind")),
    "a norm in front of a branch of a residual stream: its shift into what writes the stream, its scale ahead": Row(
        (
            f"{BOTH_WAYS}::test_a_norm_in_front_of_attention_without_biases",
            f"{BOTH_WAYS}::test_a_norm_in_front_of_a_padded_convolution",
            f"{BOTH_WAYS}::test_blocks_in_a_row",
            f"{BOTH_WAYS}::test_the_shift_is_taken_off_behind_the_sum",
            f"{BOTH_WAYS}::test_the_branch_ends_in_a_product_without_bias",
            f"{BOTH_WAYS}::test_a_shared_stream_behind_a_transpose",
            f"{BOTH_WAYS}::test_two_branches_of_one_stream",
        ),
        (f"{BOTH_WAYS}::test_what_stays", f"{BOTH_WAYS}::test_what_goes"),
    ),
    "A constant Pad value c in front of an affine becomes (c - t) / s": Row(
        (f"{POINTWISE}::test_pads_with_a_constant",)
    ),
    "A convolution bias before a plain InstanceNorm is dead": Row(
        (f"{NORMS}::test_a_bias_in_front_of_a_norm_of_each_channel_is_dead",),
        (f"{BORDER}::test_a_living_bias_stays",),
    ),
    "QDQ graphs: the weight scale takes |s|, the quantized weight its sign": Row(
        (
            f"{QUANTIZED}::test_behind_a_convolution",
            f"{QUANTIZED}::test_behind_a_product",
            f"{QUANTIZED}::test_behind_a_gemm",
            f"{QUANTIZED}::test_in_front_of_a_quantized_weight",
            f"{CORNERS}::test_zero_points_in_blocks",
        ),
        (f"{QUANTIZED}::test_the_least_integer_has_no_opposite",),
        ("DequantizeLinear",),
    ),
}

REFUSED = {
    "batch statistics, negative or NaN variance, parameters that are no constants": Row(
        ("affine/test_recognise.py::test_any_chain_is_one_map",),
        ("recognise/test_batch_statistics.py::test_batch_statistics_are_kept_with_the_reason",),
    ),
    "whole graphs of all of it: the function stays, each map has one row": Row(
        ("affine/test_random_affine_graphs.py::test_random_graphs",), ("affine/test_refusals.py::test_reason",)
    ),
}

CATALOGUE = BEFORE | AFTER | CROSSING | BRANCHES | STATISTICS | OPENINGS | REFUSED

SILENT_ERRORS = {
    "a channel axis that coincides with another": "test_onnxruntime_follows_no_channel_through_transposes",
    "ConvTranspose with Cin == Cout, or grouped": "test_inductor_scales_the_wrong_axis_of_a_transposed_convolution",
    "grouped ConvTranspose in fuse_conv_bn_eval": "test_torch_fuses_no_grouped_transposed_convolution",
    "one convolution used twice": "test_torch_fx_fuse_is_wrong",
    "a convolution read by something else": "test_pt2e_is_wrong",
    "a model in training mode": "test_a_model_left_in_training_mode",
    "counted padding, Gemm with beta != 1": "test_other_folders_on_the_same_cases",
    "LayerNorm over channels": "test_a_layer_norm_over_channels",
    "zero variance in float16": "test_zero_variance_in_float16",
    "weight expressions, InstanceNorm with running statistics": "test_what_the_exporter_leaves_unfolded",
    "ours on all of them": "test_ours_is_right",
}
"""Rows of "Where peers are silently wrong", each a regression test of peers/test_silent_errors.py."""


@cache
def functions_of(file: str) -> dict[str, bool]:
    """Return the tests of a file, and whether each draws its cases."""
    found = {}
    for node in ast.parse((HERE / file).read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            calls = [item.func for item in node.decorator_list if isinstance(item, ast.Call)]
            found[node.name] = any(isinstance(call, ast.Name) and call.id == "given" for call in calls)
    return found


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_row_has_its_tests(name):
    row = CATALOGUE[name]
    assert row.drawn
    for test in row.drawn:
        file, _, function = test.partition("::")
        assert functions_of(file)[function], f"{test} draws nothing"
    for test in row.shown:
        file, _, function = test.partition("::")
        assert function in functions_of(file), f"there is no {test}"


def test_every_operator_of_the_rules_belongs_to_a_row():
    claimed = {operator for row in CATALOGUE.values() for operator in row.operators}
    assert claimed == {operator for _, operator in RULES} | ASKED


def test_silent_errors_of_peers_are_tests():
    assert set(SILENT_ERRORS.values()) <= set(functions_of("peers/test_silent_errors.py"))
