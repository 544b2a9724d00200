//! Finds the reference kernel of a node: the function that computes its operator, the element types
//! that this function supports, and a check of the node's attributes. `check_deep` refuses a node
//! for which the table has none.

use souk_memory::DType;
use souk_onnx::subgraph::UnsupportedReason;
use souk_onnx::{CLASSICAL_DOMAIN, NodeProto, routing, sampling};

use super::call::{Call, Results};
use super::functions::{erf, max_or_nan, min_or_nan, round_half_even, sigmoid, sign, softplus};
use super::{
    attention, control, conv, deform, elementwise, encoder, gather, generate, layout, linear,
    lists, loss, norm, pool, quantize, random_operators, recurrent, reduce, resize, routed_matmul,
    signal, sort, svm, trees, vision,
};

/// A function that runs a node.
pub(super) type Kernel = fn(&Call<'_>) -> Results;

/// A check that the kernel supports a node's attributes.
type Check = fn(&NodeProto) -> Result<(), UnsupportedReason>;

/// A kernel with its requirements.
pub(super) struct Entry {
    pub run: Kernel,
    pub classes: Classes,
    pub check: Check,
}

/// A set of classes of element types.
#[derive(Clone, Copy)]
pub(super) struct Classes(u8);

/// Floats of 16 to 64 bits.
const FLOAT: Classes = Classes(1);
/// Integers of 8 to 64 bits, and booleans, which serve as marks and masks.
const WHOLE: Classes = Classes(2);
/// Floats and integers.
const NUMBER: Classes = Classes(1 | 2);
/// Numbers and floats of 8 bits.
const QUANTISED: Classes = Classes(1 | 2 | 4);
/// These and types of fewer than 8 bits, all of which floats can be quantised to.
const PACKED: Classes = Classes(1 | 2 | 4 | 16);
/// These and powers of two in 8 bits.
const CAST: Classes = Classes(1 | 2 | 4 | 16 | 32);
/// Types that fill whole bytes, for kernels that only move elements.
const ANY: Classes = Classes(1 | 2 | 4 | 8 | 32);

impl Classes {
    pub fn contains(self, dtype: DType) -> bool {
        let class = match dtype {
            dtype if super::functions::is_small_float(dtype) => 4,
            DType::Complex64 | DType::Complex128 => 8,
            DType::F8E8M0 => 32,
            dtype if super::narrow::is_narrow(dtype) => 16,
            dtype if dtype.is_float() => 1,
            _ => 2,
        };
        self.0 & class != 0
    }
}

fn accept_all(_: &NodeProto) -> Result<(), UnsupportedReason> {
    Ok(())
}

/// Returns the kernel of a node's operator. The caller must still check the node's types and
/// attributes by the entry.
pub(super) fn kernel_entry(node: &NodeProto) -> Option<Entry> {
    match node.operator_domain() {
        "" => standard_entry(node.op_type()),
        CLASSICAL_DOMAIN => classical_entry(node.op_type()),
        _ if sampling::is_sample(node) => Some(Entry {
            run: random_operators::sample_tokens,
            classes: NUMBER,
            check: accept_all,
        }),
        _ if routing::is_routed(node) => Some(Entry {
            run: routed_matmul::routed_matmul,
            classes: NUMBER,
            check: accept_all,
        }),
        _ => None,
    }
}

/// Returns the kernel of a classical operator; souk expands those without one when it loads a
/// model.
fn classical_entry(operator: &str) -> Option<Entry> {
    let trees_check: Check = |node| {
        let fault = |name| Err(UnsupportedReason::Attribute(name));
        trees::Ensemble::from_node(node).map_or_else(fault, |_| Ok(()))
    };
    let (run, check): (Kernel, Check) = match operator {
        "LabelEncoder" => (encoder::run, encoder::check_table),
        "SVMClassifier" => (svm::svm_classifier, svm::check_attributes),
        "SVMRegressor" => (svm::svm_regressor, svm::check_attributes),
        "TreeEnsemble" | "TreeEnsembleRegressor" => (trees::run, trees_check),
        _ => return None,
    };
    Some(Entry {
        run,
        classes: NUMBER,
        check,
    })
}

/// Returns the kernel of an operator of the standard set.
fn standard_entry(operator: &str) -> Option<Entry> {
    let (run, classes) = function_kernel(operator)
        .or_else(|| activation_kernel(operator))
        .or_else(|| pairwise_kernel(operator))
        .or_else(|| layout_kernel(operator))
        .or_else(|| reduction_kernel(operator))
        .or_else(|| product_kernel(operator))
        .or_else(|| normalisation_kernel(operator))
        .or_else(|| sequence_kernel(operator))
        .or_else(|| other_kernel(operator))?;
    let check: Check = match operator {
        "Dropout" => dropout_check,
        "GridSample" | "Resize" | "Upsample" => mode_check,
        "LinearAttention" => rule_check,
        "LSTM" => lstm_check,
        _ => accept_all,
    };
    Some(Entry {
        run,
        classes,
        check,
    })
}

/// Refuses training without a seed, because its random drops would differ between machines.
fn dropout_check(node: &NodeProto) -> Result<(), UnsupportedReason> {
    let is_seeded = super::random::read_seed(node).is_some();
    if node.input_name(2).is_some() && !is_seeded || node.int("is_test") == Some(0) {
        return Err(UnsupportedReason::Attribute("training_mode"));
    }
    Ok(())
}

/// Refuses unknown names of sampling methods, because a guess would choose other elements.
fn mode_check(node: &NodeProto) -> Result<(), UnsupportedReason> {
    const KNOWN: [(&str, &[&str]); 3] = [
        (
            "mode",
            &[
                "nearest",
                "linear",
                "bilinear",
                "cubic",
                "bicubic",
                "trilinear",
            ],
        ),
        (
            "coordinate_transformation_mode",
            &[
                "align_corners",
                "asymmetric",
                "half_pixel",
                "half_pixel_symmetric",
                "pytorch_half_pixel",
                "tf_crop_and_resize",
                "tf_half_pixel_for_nn",
            ],
        ),
        (
            "nearest_mode",
            &["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"],
        ),
    ];
    for (name, known) in KNOWN {
        if node.string(name).is_some_and(|mode| !known.contains(&mode)) {
            return Err(UnsupportedReason::Attribute(name));
        }
    }
    Ok(())
}

fn rule_check(node: &NodeProto) -> Result<(), UnsupportedReason> {
    match node.string("update_rule") {
        None | Some("linear" | "gated" | "delta" | "gated_delta") => Ok(()),
        Some(_) => Err(UnsupportedReason::Attribute("update_rule")),
    }
}

fn lstm_check(node: &NodeProto) -> Result<(), UnsupportedReason> {
    if node.int("input_forget").unwrap_or(0) != 0 {
        return Err(UnsupportedReason::Attribute("input_forget"));
    }
    Ok(())
}

/// Returns the kernels of functions of one element.
fn function_kernel(operator: &str) -> Option<(Kernel, Classes)> {
    let kernel: Kernel = match operator {
        "Abs" => {
            return Some((
                |call| elementwise::unary_either(call, f64::abs, i128::abs),
                NUMBER,
            ));
        }
        "Neg" => {
            return Some((
                |call| elementwise::unary_either(call, |x| -x, |x| -x),
                NUMBER,
            ));
        }
        "Sign" => {
            return Some((
                |call| elementwise::unary_either(call, sign, i128::signum),
                NUMBER,
            ));
        }
        "Not" => return Some((elementwise::not, WHOLE)),
        "BitwiseNot" => {
            return Some((|call| elementwise::unary_either(call, |x| x, |x| !x), WHOLE));
        }
        "IsNaN" => {
            return Some((
                |call| elementwise::map_predicate(call, f64::is_nan),
                QUANTISED,
            ));
        }
        "IsInf" => return Some((elementwise::is_inf, QUANTISED)),
        "Acos" => |call| elementwise::unary(call, f64::acos),
        "Acosh" => |call| elementwise::unary(call, f64::acosh),
        "Asin" => |call| elementwise::unary(call, f64::asin),
        "Asinh" => |call| elementwise::unary(call, f64::asinh),
        "Atan" => |call| elementwise::unary(call, f64::atan),
        "Atanh" => |call| elementwise::unary(call, f64::atanh),
        "Ceil" => |call| elementwise::unary(call, f64::ceil),
        "Cos" => |call| elementwise::unary(call, f64::cos),
        "Cosh" => |call| elementwise::unary(call, f64::cosh),
        "Erf" => |call| elementwise::unary(call, erf),
        "Exp" => |call| elementwise::unary(call, f64::exp),
        "Floor" => |call| elementwise::unary(call, f64::floor),
        "Log" => |call| elementwise::unary(call, f64::ln),
        "Reciprocal" => |call| elementwise::unary(call, f64::recip),
        "Round" => |call| elementwise::unary(call, round_half_even),
        "Sin" => |call| elementwise::unary(call, f64::sin),
        "Sinh" => |call| elementwise::unary(call, f64::sinh),
        "Sqrt" => |call| elementwise::unary(call, f64::sqrt),
        "Tan" => |call| elementwise::unary(call, f64::tan),
        "Tanh" => |call| elementwise::unary(call, f64::tanh),
        _ => return None,
    };
    Some((kernel, FLOAT))
}

/// Returns the kernels of activations of neural networks.
fn activation_kernel(operator: &str) -> Option<(Kernel, Classes)> {
    let kernel: Kernel = match operator {
        "Relu" => {
            let relu: Kernel = |call| {
                elementwise::unary_either(call, |x| if x < 0.0 { 0.0 } else { x }, |x| x.max(0))
            };
            return Some((relu, NUMBER));
        }
        "Sigmoid" => |call| elementwise::unary(call, sigmoid),
        "Softplus" => |call| elementwise::unary(call, softplus),
        "Softsign" => |call| elementwise::unary(call, |x| x / (1.0 + x.abs())),
        "Mish" => |call| elementwise::unary(call, |x| x * softplus(x).tanh()),
        "HardSwish" => |call| elementwise::unary(call, |x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0)),
        "Gelu" => elementwise::gelu,
        "Swish" => |call| {
            let alpha = call.float_attribute("alpha", 1.0);
            elementwise::unary(call, |x| x * sigmoid(alpha * x))
        },
        "LeakyRelu" => |call| {
            let alpha = call.float_attribute("alpha", 0.01);
            elementwise::unary(call, |x| if x < 0.0 { alpha * x } else { x })
        },
        "ThresholdedRelu" => |call| {
            let alpha = call.float_attribute("alpha", 1.0);
            elementwise::unary(call, |x| if x > alpha { x } else { 0.0 })
        },
        "Elu" => |call| {
            let alpha = call.float_attribute("alpha", 1.0);
            elementwise::unary(call, |x| if x < 0.0 { alpha * x.exp_m1() } else { x })
        },
        "Celu" => |call| {
            let alpha = call.float_attribute("alpha", 1.0);
            let below = |x: f64| alpha * (x / alpha).exp_m1();
            elementwise::unary(call, |x| max_or_nan(x, 0.0) + min_or_nan(below(x), 0.0))
        },
        "Selu" => |call| {
            let alpha = call.float_attribute("alpha", 1.673_263_192_176_818_8);
            let gamma = call.float_attribute("gamma", 1.050_701_022_148_132_3);
            elementwise::unary(call, |x| {
                gamma * if x > 0.0 { x } else { alpha * x.exp_m1() }
            })
        },
        "HardSigmoid" => |call| {
            let (alpha, beta) = (
                call.float_attribute("alpha", 0.2),
                call.float_attribute("beta", 0.5),
            );
            elementwise::unary(call, |x| (alpha * x + beta).clamp(0.0, 1.0))
        },
        "Shrink" => {
            let shrink: Kernel = |call| {
                let (bias, limit) = (
                    call.float_attribute("bias", 0.0),
                    call.float_attribute("lambd", 0.5),
                );
                elementwise::unary(call, |x| match x {
                    x if x < -limit => x + bias,
                    x if x > limit => x - bias,
                    _ => 0.0,
                })
            };
            return Some((shrink, NUMBER));
        }
        "Hardmax" => elementwise::hardmax,
        "SwiGLU" => generate::swiglu,
        _ => return None,
    };
    Some((kernel, FLOAT))
}

/// Returns the kernels of operators that pair the elements of two or more tensors.
fn pairwise_kernel(operator: &str) -> Option<(Kernel, Classes)> {
    let kernel: Kernel = match operator {
        "Add" => |call| elementwise::binary(call, |a, b| a + b, |a, b| Ok(a + b)),
        "Sub" => |call| elementwise::binary(call, |a, b| a - b, |a, b| Ok(a - b)),
        "Mul" => |call| elementwise::binary(call, |a, b| a * b, |a, b| Ok(a.wrapping_mul(b))),
        "Div" => elementwise::divide,
        "Mod" => elementwise::modulo,
        "Pow" => elementwise::power,
        "PRelu" => |call| {
            let float = |x: f64, slope: f64| if x < 0.0 { slope * x } else { x };
            elementwise::binary(call, float, |x, slope| {
                Ok(if x < 0 { slope * x } else { x })
            })
        },
        "Max" => |call| elementwise::variadic(call, max_or_nan, i128::max),
        "Min" => |call| elementwise::variadic(call, min_or_nan, i128::min),
        "Sum" => elementwise::sum,
        "Mean" => elementwise::mean,
        "Clip" => elementwise::clip,
        "Equal" => |call| elementwise::compare(call, |a, b| a == b, |a, b| a == b),
        "Greater" => |call| elementwise::compare(call, |a, b| a > b, |a, b| a > b),
        "GreaterOrEqual" => |call| elementwise::compare(call, |a, b| a >= b, |a, b| a >= b),
        "Less" => |call| elementwise::compare(call, |a, b| a < b, |a, b| a < b),
        "LessOrEqual" => |call| elementwise::compare(call, |a, b| a <= b, |a, b| a <= b),
        "And" | "BitwiseAnd" => |call| elementwise::binary(call, f64::min, |a, b| Ok(a & b)),
        "Or" | "BitwiseOr" => |call| elementwise::binary(call, f64::max, |a, b| Ok(a | b)),
        "Xor" | "BitwiseXor" => |call| elementwise::binary(call, |a, b| a - b, |a, b| Ok(a ^ b)),
        "BitShift" => elementwise::bit_shift,
        _ => return None,
    };
    Some((kernel, NUMBER))
}

/// Returns the kernels of operators that move elements or make tensors.
fn layout_kernel(operator: &str) -> Option<(Kernel, Classes)> {
    let kernel: Kernel = match operator {
        "Cast" => return Some((elementwise::cast, CAST)),
        "CastLike" => return Some((elementwise::cast_like, CAST)),
        "BitCast" => elementwise::bit_cast,
        "CenterCropPad" => layout::center_crop_pad,
        "Compress" => sort::compress,
        "Concat" => layout::concat,
        "Constant" => generate::constant,
        "ConstantOfShape" => generate::constant_of_shape,
        "DepthToSpace" => layout::depth_to_space,
        "Dropout" => generate::dropout,
        "Expand" => layout::expand,
        "EyeLike" => generate::eye_like,
        "Flatten" => layout::flatten,
        "Gather" => gather::gather,
        "GatherElements" => gather::gather_elements,
        "GatherND" => gather::gather_nd,
        "Identity" => layout::identity,
        "OneHot" => gather::one_hot,
        "Pad" => layout::pad,
        "Reshape" => layout::reshape,
        "ReverseSequence" => layout::reverse_sequence,
        "Scatter" | "ScatterElements" => gather::scatter_elements,
        "ScatterND" => gather::scatter_nd,
        "Shape" => layout::shape,
        "Size" => layout::size,
        "Slice" => layout::slice,
        "SpaceToDepth" => layout::space_to_depth,
        "Split" => layout::split,
        "Squeeze" => layout::squeeze,
        "TensorScatter" => gather::tensor_scatter,
        "Tile" => layout::tile,
        "Transpose" => layout::transpose,
        "Trilu" => layout::trilu,
        "Unsqueeze" => layout::unsqueeze,
        "Where" => elementwise::select_elements,
        _ => return None,
    };
    Some((kernel, ANY))
}

/// Returns the kernels of reductions, running values and sorting.
fn reduction_kernel(operator: &str) -> Option<(Kernel, Classes)> {
    let kernel: Kernel = match operator {
        "ReduceMax" => reduce::reduce_max,
        "ReduceMin" => reduce::reduce_min,
        "ReduceMean" => reduce::reduce_mean,
        "ReduceLogSumExp" => reduce::log_sum_exp,
        "ReduceLogSum" => {
            let log: Kernel = |call| reduce::reduce_floats(call, |values| values.sum::<f64>().ln());
            return Some((log, NUMBER));
        }
        "ReduceL2" => reduce::reduce_l2,
        "ReduceSum" => |call| reduce::reduce_either(call, |it| it.sum(), |it| it.sum()),
        "ReduceProd" => |call| {
            let int = |values: &mut dyn Iterator<Item = i128>| values.fold(1, i128::wrapping_mul);
            reduce::reduce_either(call, |it| it.product(), int)
        },
        "ReduceL1" => |call| {
            let float = |values: &mut dyn Iterator<Item = f64>| values.map(f64::abs).sum();
            reduce::reduce_either(call, float, |it| it.map(i128::abs).sum())
        },
        "ReduceSumSquare" => |call| {
            let float = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum();
            reduce::reduce_either(call, float, |it| it.map(|x| x.wrapping_mul(x)).sum())
        },
        "ArgMax" => |call| reduce::arg_extreme(call, |a, b| a > b),
        "ArgMin" => |call| reduce::arg_extreme(call, |a, b| a < b),
        "CumSum" => |call| reduce::accumulate_axis(call, 0, |a, b| a + b, |a, b| a + b),
        "CumProd" => |call| reduce::accumulate_axis(call, 1, |a, b| a * b, i128::wrapping_mul),
        "NonZero" => sort::non_zero,
        "TfIdfVectorizer" => generate::count_ngrams,
        "TopK" => sort::top_k,
        "Unique" => sort::unique,
        _ => return None,
    };
    Some((kernel, NUMBER))
}

/// Returns the kernels of matrix products, convolutions and attention.
fn product_kernel(operator: &str) -> Option<(Kernel, Classes)> {
    let kernel: Kernel = match operator {
        "Attention" => attention::attention,
        "CausalConvWithState" => conv::causal_conv,
        "Col2Im" => conv::col2im,
        "Conv" => conv::conv,
        "ConvInteger" => conv::conv_integer,
        "ConvTranspose" => conv::conv_transpose,
        "DeformConv" => deform::deform_conv,
        "Det" => linear::det,
        "Einsum" => linear::einsum,
        "GRU" => recurrent::run_gru,
        "Gemm" => linear::gemm,
        "LSTM" => recurrent::run_lstm,
        "LinearAttention" => attention::linear_attention,
        "MatMul" => linear::matmul,
        "MatMulInteger" => linear::matmul_integer,
        "QLinearConv" => conv::qlinear_conv,
        "QLinearMatMul" => linear::qlinear_matmul,
        "RNN" => recurrent::run_rnn,
        "RotaryEmbedding" => attention::rotary_embedding,
        _ => return None,
    };
    Some((kernel, NUMBER))
}

/// Returns the kernels of normalisations, pooling and losses.
fn normalisation_kernel(operator: &str) -> Option<(Kernel, Classes)> {
    let kernel: Kernel = match operator {
        "AveragePool" => pool::average_pool,
        "BatchNormalization" => norm::batch_norm,
        "GlobalAveragePool" => |call| {
            pool::global_pool(call, |values| {
                let (sum, count) = values.fold((0.0, 0u64), |(sum, n), value| (sum + value, n + 1));
                sum / count as f64
            })
        },
        "GlobalLpPool" => |call| {
            let power = call.int_attribute("p", 2) as f64;
            pool::global_pool(call, |it| {
                it.map(|x| x.abs().powf(power))
                    .sum::<f64>()
                    .powf(1.0 / power)
            })
        },
        "GlobalMaxPool" => {
            |call| pool::global_pool(call, |it| it.fold(f64::NEG_INFINITY, max_or_nan))
        }
        "GroupNormalization" => norm::group_norm,
        "InstanceNormalization" => norm::instance_norm,
        "LRN" => pool::local_response,
        "LayerNormalization" => norm::layer_norm,
        "LogSoftmax" => |call| norm::softmax(call, true),
        "LpNormalization" => norm::lp_norm,
        "LpPool" => pool::lp_pool,
        "MaxPool" => pool::max_pool,
        "MaxUnpool" => pool::max_unpool,
        "MeanVarianceNormalization" => norm::mean_variance,
        "NegativeLogLikelihoodLoss" => loss::negative_log_likelihood,
        "RMSNormalization" => norm::root_mean_square,
        "Softmax" => |call| norm::softmax(call, false),
        "SoftmaxCrossEntropyLoss" => loss::softmax_cross_entropy,
        _ => return None,
    };
    Some((kernel, NUMBER))
}

/// Returns the kernels of lists of tensors.
fn sequence_kernel(operator: &str) -> Option<(Kernel, Classes)> {
    let kernel: Kernel = match operator {
        "ConcatFromSequence" => lists::concat_from_sequence,
        "SequenceAt" => lists::sequence_at,
        "SequenceConstruct" => lists::sequence_construct,
        "SequenceEmpty" => lists::sequence_empty,
        "SequenceErase" => lists::sequence_erase,
        "SequenceInsert" => lists::sequence_insert,
        "SequenceLength" => lists::sequence_length,
        "SequenceMap" => lists::sequence_map,
        "SplitToSequence" => lists::split_to_sequence,
        _ => return None,
    };
    Some((kernel, ANY))
}

/// Returns the kernels of all other operators.
fn other_kernel(operator: &str) -> Option<(Kernel, Classes)> {
    let kernel: Kernel = match operator {
        "QuantizeLinear" => return Some((quantize::quantize, PACKED)),
        "DequantizeLinear" => return Some((quantize::dequantize, PACKED)),
        "If" => return Some((control::run_if, ANY)),
        "Loop" => return Some((control::run_loop, ANY)),
        "Scan" => return Some((control::run_scan, ANY)),
        "AffineGrid" => vision::affine_grid,
        "BlackmanWindow" => |call| generate::window(call, [0.42, 0.5, 0.08]),
        "DFT" => signal::dft,
        "DynamicQuantizeLinear" => quantize::dynamic_quantize,
        "GridSample" => vision::grid_sample,
        "HammingWindow" => |call| generate::window(call, [25.0 / 46.0, 21.0 / 46.0, 0.0]),
        "HannWindow" => |call| generate::window(call, [0.5, 0.5, 0.0]),
        "MelWeightMatrix" => signal::mel_weights,
        "NonMaxSuppression" => vision::non_max_suppression,
        "Bernoulli" => random_operators::bernoulli,
        "Multinomial" => random_operators::multinomial,
        "RandomNormal" | "RandomNormalLike" => random_operators::random_normal,
        "RandomUniform" | "RandomUniformLike" => random_operators::random_uniform,
        "Range" => generate::range,
        "Resize" => resize::resize,
        "RoiAlign" => vision::roi_align,
        "STFT" => signal::stft,
        "Upsample" => resize::upsample,
        _ => return None,
    };
    Some((kernel, NUMBER))
}
