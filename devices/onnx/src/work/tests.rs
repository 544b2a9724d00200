//! Tests the counts of arithmetic operations, bytes and launches of operators.

use super::*;
use crate::AttributeProto;

/// Operators whose attributes and shapes say how much they compute: inputs, the first output, and
/// the operations of that. `-` is an absent input, `[]` a scalar.
const CASES: &str = "
MatMul                              4x8 8x16                    4x16      1024
MatMul                              2x3x4x8 8x16                2x3x4x16  6144
MatMulInteger                       4x8 8x16                    4x16      1024
RoutedMatMul                        1x2x8 6x16x8 1x2x3          1x2x3x16  1536
RoutedMatMul                        1x2x3x8 6x16x8 1x2x3        1x2x3x16  1536
QLinearMatMul                       4x8 [] [] 8x16 [] [] [] []  4x16      1024
Gemm                                4x8 8x16                    4x16      1024
Gemm transA=1                       8x4 8x16 16                 4x16      1152
Einsum equation=ij,jk->ik           4x8 8x16                    4x16      1024
Einsum equation=bij,bjk             3x4x8 3x8x16                3x4x16    3072
Einsum equation=...ij,jk->...ik     2x3x4x8 8x16                2x3x4x16  6144
Einsum equation=ii->i               5x5                         5         10
Det                                 2x6x6                       2         288
Conv                                1x3x8x8 16x3x3x3            1x16x6x6  31104
Conv group=4                        1x4x8x8 4x1x3x3             1x4x6x6   2592
Conv                                1x3x8 16x3x3                1x16x6    1728
ConvInteger                         1x3x8x8 16x3x3x3            1x16x6x6  31104
QLinearConv                         1x3x8x8 [] [] 16x3x3x3      1x16x6x6  31104
ConvTranspose                       1x3x4x4 3x16x3x3            1x16x6x6  13824
DeformConv                          1x3x8x8 16x3x3x3 1x18x6x6   1x16x6x6  38880
CausalConvWithState                 1x4x8 4x1x3                 1x4x8     192
LSTM                                5x2x3 1x16x3 1x16x4         5x1x2x4   2240
GRU                                 5x2x3 1x12x3 1x12x4         5x1x2x4   1680
RNN                                 5x2x3 1x4x3 1x4x4           5x1x2x4   560
Attention                           1x2x3x4 1x2x5x4 1x2x5x4     1x2x3x4   810
Attention q_num_heads=2             1x3x8 1x5x8 1x5x8           1x3x8     810
Attention q_num_heads=2             1x3x8 1x5x8 1x5x8 - 1x2x4x4 1x3x8     1458
LinearAttention q_num_heads=2 kv_num_heads=2 1x5x6 1x5x6 1x5x8  1x5x8     840
RotaryEmbedding                     1x2x3x4 3x2 3x2             1x2x3x4   72
MaxPool kernel_shape=3,3            1x2x8x8                     1x2x6x6   648
AveragePool kernel_shape=2,2        1x2x8x8                     1x2x4x4   128
LpPool kernel_shape=2,2             1x2x8x8                     1x2x4x4   128
GlobalAveragePool                   1x2x8x8                     1x2x1x1   128
LRN size=5                          1x8x2x2                     1x8x2x2   576
Col2Im                              1x12x4                      1x3x3x3   48
GridSample                          1x1x4x4 1x3x3x2             1x1x3x3   108
GridSample mode=nearest             1x1x4x4 1x3x3x2             1x1x3x3   36
GridSample mode=cubic               1x1x4x4 1x3x3x2             1x1x3x3   324
Resize mode=linear                  1x1x4x4                     1x1x8x8   512
Resize mode=cubic                   1x1x4x4                     1x1x8x8   2048
Resize                              1x1x4x4                     1x1x8x8   0
RoiAlign sampling_ratio=3           1x2x8x8 5x4 5               5x2x2x2   2880
AffineGrid                          1x2x3 4                     1x4x4x2   192
TopK                                2x1000                      2x5       20000
TopK axis=0                         1024x2                      5x2       20480
Unique                              256                         9         2048
NonMaxSuppression                   1x64x4 1x2x64               3x3       3072
DFT                                 1x16x1                      1x16x2    320
DFT axis=1                          1x16x1                      1x16x2    320
STFT                                1x128x1 [] 16               1x15x9x2  5040
Softmax                             2x8                         2x8       176
SoftmaxCrossEntropyLoss             4x8 4                       []        384
LayerNormalization                  2x8 8 8                     2x8       128
MeanVarianceNormalization           1x2x4x4                     1x2x4x4   256
BatchNormalization                  1x2x4x4 2 2 2 2             1x2x4x4   64
Hardmax                             2x8                         2x8       32
ReduceSum                           2x8                         2         16
ReduceLogSumExp                     2x8                         2         176
ArgMax                              2x8                         2         16
CumSum                              2x8 []                      2x8       16
NonZero                             2x8                         2x3       16
DynamicQuantizeLinear               2x8                         2x8       96
QuantizeLinear                      2x8 []                      2x8       48
RandomNormal                        -                           2x8       160
HannWindow                          []                          16        160
Dropout                             2x8 [] []                   2x8       64
Sum                                 2x8 2x8 2x8                 2x8       32
Mean                                2x8 2x8 2x8                 2x8       48
Erf                                 2x8                         2x8       128
SwiGLU                              2x8 2x8                     2x8       160
HardSwish                           2x8                         2x8       80
Add                                 2x8 8                       2x8       16
Transpose                           2x8                         8x2       0
OneHot                              2x8 [] 2                    2x8x4     0
Reshape                             2x8 1                       16        0
";

fn node(operator: &str) -> NodeProto {
    NodeProto {
        op_type: Some(operator.to_owned()),
        ..NodeProto::default()
    }
}

fn floats(dims: &[usize]) -> Extent<'_> {
    Extent {
        dtype: DType::F32,
        dims,
    }
}

fn attribute(name: &str, value: &str) -> AttributeProto {
    let ints: Result<Vec<i64>, _> = value.split(',').map(str::parse).collect();
    let named = AttributeProto {
        name: Some(name.to_owned()),
        ..AttributeProto::default()
    };
    match ints {
        Ok(ints) if ints.len() == 1 => AttributeProto {
            i: Some(ints[0]),
            ..named
        },
        Ok(ints) => AttributeProto { ints, ..named },
        Err(_) => AttributeProto {
            s: Some(value.as_bytes().to_vec().into()),
            ..named
        },
    }
}

fn dims(text: &str) -> Option<Vec<usize>> {
    match text {
        "-" => None,
        "[]" => Some(Vec::new()),
        sizes => Some(sizes.split('x').map(|size| size.parse().unwrap()).collect()),
    }
}

fn work(case: &str) -> (Work, u64) {
    let mut words = case.split_whitespace().collect::<Vec<_>>();
    let expected = words.pop().unwrap().parse().unwrap();
    let mut node = node(words.remove(0));
    while let Some((name, value)) = words[0].split_once('=') {
        node.attribute.push(attribute(name, value));
        words.remove(0);
    }
    let output = dims(words.pop().unwrap()).unwrap();
    let inputs: Vec<_> = words.into_iter().map(dims).collect();
    node.input = (0..inputs.len()).map(|index| format!("i{index}")).collect();
    let inputs: Vec<_> = inputs.iter().map(|it| Some(floats(it.as_ref()?))).collect();
    (Work::for_node(&node, &inputs, &[floats(&output)]), expected)
}

#[test]
fn operators_are_counted_from_their_shapes() {
    for case in CASES.lines().filter(|line| !line.is_empty()) {
        let (work, expected) = work(case);
        assert_eq!(work.operations, expected, "{case}");
    }
}

#[test]
fn what_is_read_and_written_is_counted_once() {
    let (work, _) = work("MatMul 4x8 8x16 4x16 0");
    assert_eq!(work.bytes_read, 4 * (4 * 8 + 8 * 16));
    assert_eq!(work.bytes_written, 4 * 4 * 16);
}

#[test]
fn a_reshape_is_free_and_a_gather_reads_what_it_takes() {
    assert_eq!(
        Work::for_node(&node("Reshape"), &[Some(floats(&[9]))], &[floats(&[3, 3])]),
        Work::default()
    );
    let ids = Extent {
        dtype: DType::I64,
        dims: &[2],
    };
    let work = Work::for_node(
        &node("Gather"),
        &[Some(floats(&[30000, 4])), Some(ids)],
        &[floats(&[2, 4])],
    );
    assert_eq!(work.bytes_read, 2 * 4 * 4 + 2 * 8);
}

#[test]
fn of_matrices_that_rows_are_routed_to_only_those_are_read() {
    let read = |choices: &[usize]| {
        let choices = Extent {
            dtype: DType::I64,
            dims: choices,
        };
        let inputs = [floats(&[1, 2, 8]), floats(&[6, 16, 8]), choices].map(Some);
        let work = Work::for_node(&node("RoutedMatMul"), &inputs, &[floats(&[1, 2, 2, 16])]);
        work.bytes_read - choices.byte_count() - 4 * 2 * 8
    };
    assert_eq!(read(&[1, 2, 2]), 4 * 4 * 16 * 8);
    assert_eq!(read(&[1, 2, 5]), 6 * 4 * 16 * 8);
}

#[test]
fn bodies_count_as_often_as_they_run_and_of_branches_the_costlier() {
    let body = |operations| Work {
        operations,
        launches: 1,
        ..Work::default()
    };
    let branches = [body(5), body(9), body(7)];
    let around = |node: &NodeProto, inputs: &[_], rounds, bodies: &[Work]| {
        Work::for_bodies(node, inputs, rounds, bodies).operations
    };
    assert_eq!(around(&node("If"), &[], None, &branches), 9);
    assert_eq!(around(&node("Loop"), &[], Some(6), &[body(4)]), 24);
    assert_eq!(around(&node("Loop"), &[], Some(0), &[body(4)]), 0);
    assert_eq!(around(&node("Loop"), &[], None, &[body(4)]), 4);
    let endless = Some(i64::MAX as u64);
    assert_eq!(around(&node("Loop"), &[], endless, &[body(4)]), 4);
    let mut scan = node("Scan");
    scan.attribute.push(attribute("num_scan_inputs", "1"));
    let inputs = [Some(floats(&[2])), Some(floats(&[3, 7]))];
    assert_eq!(around(&scan, &inputs, None, &[body(4)]), 12);
    scan.attribute.push(AttributeProto {
        ints: vec![-1],
        ..attribute("scan_input_axes", "-1,-1")
    });
    assert_eq!(around(&scan, &inputs, None, &[body(4)]), 28);
}

#[test]
fn sizes_beyond_all_reason_are_counted_as_the_largest_number() {
    let dims = [usize::MAX; 4];
    let long = i64::MAX.to_string();
    for case in CASES.lines().filter(|line| !line.is_empty()) {
        let mut node = node(case.split_whitespace().next().unwrap());
        for name in ["size", "q_num_heads", "kv_num_heads", "K", "offset_group"] {
            node.attribute.push(attribute(name, &long));
        }
        let work = Work::for_node(&node, &[Some(floats(&dims)); 8], &[floats(&dims)]);
        let moves = matches!(
            node.op_type(),
            "Transpose" | "OneHot" | "Reshape" | "Resize" | "Dropout"
        );
        let least = if moves { 0 } else { 1 << 60 };
        assert!(work.operations >= least, "{case}");
    }
}
