//! Tests every operator of the GPU's table with random shapes and values against the same node in
//! 64 bits on the CPU: on the adapter, and on paper (the kernel is translated to CUDA C++ and runs
//! on the CPU).

use std::collections::BTreeSet;

use souk_onnxruntime::{Library, OnnxRuntime};
use souk_reference::shape::broadcast_places;

use super::*;
use crate::program::table::is_declared;

/// Random graphs of each operator; each seed is all of them once.
const SEEDS: u32 = 6;

/// Functions that WGSL bounds loosely, or that are made of such.
const LOOSE: &[&str] = &["Acos", "Asin", "Atan", "Atanh", "Cosh", "Sinh", "Tan"];

/// A version of the operator set that has them all.
const OPSET: i64 = 24;

/// Numbers that follow from a seed.
struct Draw {
    state: u64,
}

impl Draw {
    fn next(&mut self) -> u64 {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.state >> 33
    }

    /// From `low` to `high`, both among them.
    fn size(&mut self, low: usize, high: usize) -> usize {
        low + self.next() as usize % (high - low + 1)
    }

    fn flag(&mut self) -> i64 {
        self.size(0, 1) as i64
    }

    fn dims<const N: usize>(&mut self, low: usize, high: usize) -> [usize; N] {
        std::array::from_fn(|_| self.size(low, high))
    }

    fn between(&mut self, dims: &[usize], low: f64, high: f64) -> Floats {
        let count: usize = dims.iter().product();
        let one = |_| low + (high - low) * (self.next() as f64 / (1u64 << 31) as f64);
        (dims.to_vec(), (0..count).map(one).collect())
    }

    fn floats(&mut self, dims: &[usize]) -> Floats {
        self.between(dims, -4.0, 4.0)
    }

    /// Small ones beside large ones, none of them zero.
    fn spread(&mut self, dims: &[usize]) -> Floats {
        let (dims, powers) = self.between(dims, -3.0, 0.6);
        let signed = |power: f64| 10f64.powf(power) * if self.flag() == 0 { 1.0 } else { -1.0 };
        (dims, powers.into_iter().map(signed).collect())
    }

    fn truths(&mut self, dims: &[usize]) -> Tensor {
        let count = dims.iter().product();
        let values: Vec<bool> = (0..count).map(|_| self.flag() == 1).collect();
        Tensor::from_bools(dims, &values).unwrap()
    }

    /// Integers below `end`.
    fn places(&mut self, dims: &[usize], end: usize) -> Tensor {
        let count: usize = dims.iter().product();
        let values = (0..count).map(|_| self.size(0, end - 1) as i64);
        Tensor::from_vec(dims, values.collect()).unwrap()
    }

    fn words(&mut self, dims: &[usize]) -> Tensor {
        let count: usize = dims.iter().product();
        let values = (0..count).map(|_| self.next() as i32 - (1 << 30));
        Tensor::from_vec(dims, values.collect()).unwrap()
    }

    fn bytes(&mut self, dtype: DType, dims: &[usize]) -> Tensor {
        let count: usize = dims.iter().product();
        let values: Vec<u8> = (0..count).map(|_| self.next() as u8).collect();
        Tensor::new(dtype, Shape::new(dims.to_vec()).unwrap(), values.into()).unwrap()
    }
}

type Floats = (Vec<usize>, Vec<f64>);

/// What a node is given in place of an input.
enum Given {
    /// Floats of whatever type is computed with.
    Floats(Floats),
    /// Something else in the run.
    Run(Tensor),
    /// Something the model holds.
    TensorHandle(Tensor),
    Nothing,
}

use Given::{Floats as F, Nothing, Run as R, TensorHandle as H};

struct Case {
    node: NodeProto,
    given: Vec<Given>,
    tolerance: f64,
    /// Whether an error is held against the elements that it comes from, not against the largest.
    by_element: bool,
}

const INPUTS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
const OUTPUTS: [&str; 4] = ["y", "y1", "y2", "y3"];

fn case(operator: &str, given: Vec<Given>) -> Case {
    let names = INPUTS.iter().zip(&given);
    let names = names.map(|(name, it)| if matches!(it, Nothing) { "" } else { name });
    let names: Vec<&str> = names.collect();
    Case {
        node: node(operator, &names, &["y"]),
        given,
        tolerance: TOLERANCE_LOOSE,
        by_element: false,
    }
}

/// An operator whose elements come of those at the same place alone.
fn by_element(operator: &str, given: Vec<Given>) -> Case {
    let is_loose = LOOSE.contains(&operator);
    Case {
        tolerance: if is_loose { TOLERANCE_LOOSE } else { TOLERANCE },
        by_element: true,
        ..case(operator, given)
    }
}

fn list(values: &[i64]) -> Given {
    H(Tensor::from_vec([values.len()], values.to_vec()).unwrap())
}

impl Case {
    fn int(mut self, name: &str, value: i64) -> Self {
        self.node = with_int(self.node, name, value);
        self
    }

    fn ints(mut self, name: &str, values: &[i64]) -> Self {
        self.node = with_ints(self.node, name, values);
        self
    }

    fn float(mut self, name: &str, value: f32) -> Self {
        self.node = with(self.node, name, |attribute| attribute.f = Some(value));
        self
    }

    fn text(mut self, name: &str, value: &'static str) -> Self {
        self.node = with(self.node, name, |attribute| {
            attribute.s = Some(bytes::Bytes::from_static(value.as_bytes()));
        });
        self
    }

    fn outputs(mut self, count: usize) -> Self {
        self.node.output = OUTPUTS[..count].iter().map(ToString::to_string).collect();
        self
    }

    /// Nothing is rounded but to the type.
    fn exact(self) -> Self {
        Self {
            tolerance: 0.0,
            ..self
        }
    }

    /// The node as a graph, and what it is given in a run; floats are those of `values` as `dtype`.
    fn graph(&self, dtype: DType, values: DType) -> (Subgraph, BTreeMap<String, Tensor>) {
        let (mut ports, mut weights, mut inputs) = (Vec::new(), Vec::new(), BTreeMap::new());
        for (name, given) in self.node.input.iter().zip(&self.given) {
            let in_run = match given {
                F((dims, floats)) => tensor(dtype, dims, &rounded(values, floats)),
                R(tensor) => tensor.clone(),
                H(tensor) => {
                    weights.push((name.as_str(), tensor.clone()));
                    continue;
                }
                Nothing => continue,
            };
            ports.push((name.as_str(), in_run.dtype()));
            inputs.insert(name.clone(), in_run);
        }
        let graph = |types: &[DType]| {
            let names = self.node.output.iter().map(String::as_str);
            let outputs: Vec<(&str, DType)> = names.zip(types.iter().copied()).collect();
            let mut proto = model(vec![self.node.clone()], &ports, &outputs, &weights);
            proto.opset_import[0].version = Some(OPSET);
            subgraph(&proto)
        };
        // What the types of the outputs are, the CPU says.
        let guessed = vec![dtype; self.node.output.len()];
        let program = cpu().compile(&graph(&guessed)).unwrap();
        let types: Vec<DType> = program.outputs().iter().map(|port| port.dtype).collect();
        (graph(&types), inputs)
    }

    fn made(&self, device: &dyn Processor, dtype: DType, values: DType) -> Vec<Tensor> {
        let (graph, inputs) = self.graph(dtype, values);
        let node = &self.node;
        let program = device.compile(&graph);
        let program = program.unwrap_or_else(|error| panic!("{node:?} in {dtype}: {error}"));
        let outcome = program.run(&inputs);
        let mut outcome = outcome.unwrap_or_else(|error| panic!("{node:?} in {dtype}: {error}"));
        let names = node.output.iter();
        names
            .map(|name| outcome.outputs.remove(name).unwrap())
            .collect()
    }

    fn operands(&self) -> impl Iterator<Item = f64> {
        let floats = self.given.iter().filter_map(|given| match given {
            F((_, values)) => Some(values),
            _ => None,
        });
        floats.flatten().copied()
    }

    fn holds_on(&self, device: &dyn Processor, types: &[DType]) -> Result<(), TestCaseError> {
        let is_float = self.given.iter().any(|given| matches!(given, F(_)));
        for &dtype in &types[..if is_float { types.len() } else { 1 }] {
            let expected = self.made(&cpu(), if is_float { DType::F64 } else { dtype }, dtype);
            let found = self.made(device, dtype, dtype);
            let rounding = match dtype {
                DType::F16 => 1.0 / 2048.0,
                DType::Bf16 => 1.0 / 256.0,
                _ => 0.0,
            };
            let tolerance = self.tolerance + if self.tolerance == 0.0 { 0.0 } else { rounding };
            for (found, expected) in found.iter().zip(&expected) {
                self.same(found, expected, tolerance, dtype)?;
            }
        }
        Ok(())
    }

    fn same(
        &self,
        found: &Tensor,
        expected: &Tensor,
        tolerance: f64,
        dtype: DType,
    ) -> Result<(), TestCaseError> {
        prop_assert_eq!(found.dims(), expected.dims(), "{}", self.node.op_type());
        if !expected.dtype().is_float() {
            let said = format!("{:?} in {dtype}", self.node);
            prop_assert_eq!(found.bytes(), expected.bytes(), "{}", said);
            return Ok(());
        }
        let dims = expected.dims().to_vec();
        let (found, expected) = (found.to_f64s().unwrap(), expected.to_f64s().unwrap());
        let largest = self.scales(&dims, &expected);
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let same = found == expected || (found.is_nan() && expected.is_nan());
            let near = (found - expected).abs() <= tolerance * largest[at];
            let node = &self.node;
            prop_assert!(
                same || near,
                "{node:?} in {dtype} at {at}: {found} {expected}"
            );
        }
        Ok(())
    }

    /// What the error of each element is held against.
    fn scales(&self, dims: &[usize], expected: &[f64]) -> Vec<f64> {
        let larger = |largest: f64, value: f64| match value.is_finite() {
            true => largest.max(value.abs()),
            false => largest,
        };
        if !self.by_element {
            let all = expected.iter().copied().chain(self.operands());
            return vec![all.fold(1e-30, larger); expected.len()];
        }
        let mut scales: Vec<f64> = expected.iter().map(|&it| larger(1e-30, it)).collect();
        for given in &self.given {
            let F((own, values)) = given else { continue };
            let places = broadcast_places(own, dims).into_iter();
            for (scale, place) in scales.iter_mut().zip(places) {
                *scale = larger(*scale, values[place]);
            }
        }
        scales
    }
}

type Family = fn(&mut Draw) -> Vec<Case>;

const FAMILIES: &[Family] = &[
    activations,
    pairs,
    integers,
    reductions,
    images,
    norms,
    products,
    sequences,
    losses,
    moves,
    gathers,
    shapes,
    quantised,
];

/// Runs a test on each case of a family, anew for each seed.
fn hold_each(family: Family, test: impl Fn(Case) -> Result<(), TestCaseError>) {
    let config = Config {
        cases: SEEDS,
        failure_persistence: None,
        ..Config::default()
    };
    let all = |seed| {
        let cases = family(&mut Draw { state: seed }).into_iter();
        let wrong: Vec<String> = cases
            .filter_map(|case| test(case).err())
            .map(|error| error.to_string())
            .collect();
        prop_assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    };
    TestRunner::new(config).run(&any::<u64>(), all).unwrap();
}

fn hold(family: Family) {
    hold_each(family, |case| {
        let types = [DType::F32, DType::F16, DType::Bf16];
        let mut devices = quantised::devices();
        devices.try_for_each(|device| case.holds_on(device, &types))
    });
}

#[test]
fn every_declared_operator_has_a_case() {
    let mut draw = Draw { state: 1 };
    let cases = FAMILIES.iter().flat_map(|family| family(&mut draw));
    let named: BTreeSet<String> = cases.map(|it| it.node.op_type().to_owned()).collect();
    let sources = [
        include_str!("../program/table.rs"),
        include_str!("../operators/elementwise.rs"),
        include_str!("../operators/reduce.rs"),
        include_str!("../operators/elementwise/integers.rs"),
    ];
    let quoted = sources
        .iter()
        .flat_map(|it| it.split('"').skip(1).step_by(2));
    let left: BTreeSet<&str> = quoted
        .filter(|it| is_declared(it) && !named.contains(*it))
        .collect();
    assert!(left.is_empty(), "declared, and not tried: {left:?}");
}

/// Operators of which ONNX Runtime has a kernel for floats of 32 bits, at least.
const TAKEN_MIN: usize = 90;

/// The CPU through ONNX Runtime; `None` where there is no library.
fn runtime() -> Option<OnnxRuntime> {
    let named = std::env::var_os("SOUK_TEST_ONNXRUNTIME").map(Into::into);
    let Some(path) = named.or_else(souk_onnxruntime::library_path) else {
        eprintln!("SKIPPED: no ONNX Runtime library; SOUK_TEST_ONNXRUNTIME can name one");
        return None;
    };
    let library = Library::open(&path).expect("the library that was found opens");
    let (provider, profile) = (library.host_provider().clone(), cpu().profile().clone());
    let threads = NonZeroUsize::MIN;
    Some(OnnxRuntime::new(library, provider, profile, threads))
}

#[test]
fn what_onnx_runtime_takes_it_gets_right() {
    let Some(device) = runtime() else {
        return;
    };
    let taken = std::cell::RefCell::new(BTreeSet::new());
    for family in FAMILIES {
        hold_each(*family, |case| {
            let (graph, _) = case.graph(DType::F32, DType::F32);
            if device.compile(&graph).is_err() {
                return Ok(());
            }
            taken.borrow_mut().insert(case.node.op_type().to_owned());
            // Its exponentials less one lose digits near zero, as ONNX's own formula does.
            let case = Case {
                by_element: false,
                ..case
            };
            case.holds_on(&device, &[DType::F32])
        });
    }
    let taken = taken.into_inner();
    assert!(
        taken.len() >= TAKEN_MIN,
        "{} of them: {taken:?}",
        taken.len()
    );
}

#[test]
fn activations_are_those_of_onnx() {
    hold(activations);
}

#[test]
fn pairs_are_those_of_onnx() {
    hold(pairs);
    hold(integers);
}

#[test]
fn reductions_are_those_of_onnx() {
    hold(reductions);
}

#[test]
fn images_are_those_of_onnx() {
    hold(images);
}

#[test]
fn norms_are_those_of_onnx() {
    hold(norms);
}

#[test]
fn products_and_attention_are_those_of_onnx() {
    hold(products);
    hold(sequences);
}

#[test]
fn losses_are_those_of_onnx() {
    hold(losses);
}

#[test]
fn moves_are_those_of_onnx() {
    hold(moves);
    hold(gathers);
    hold(shapes);
}

#[test]
fn bytes_are_those_of_onnx() {
    hold(quantised);
}

/// Functions of any float.
const ACTIVATIONS: &[&str] = &[
    "Abs",
    "Asinh",
    "Atan",
    "Ceil",
    "Cos",
    "Cosh",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Mish",
    "Neg",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Swish",
    "Tanh",
    "ThresholdedRelu",
    "Identity",
    "Elu",
    "Celu",
    "IsNaN",
    "IsInf",
];

fn activations(draw: &mut Draw) -> Vec<Case> {
    let dims = draw.dims::<2>(1, 9);
    let one = |name: &&str| by_element(name, vec![F(draw.spread(&dims))]);
    let mut cases: Vec<Case> = ACTIVATIONS.iter().map(one).collect();
    let mut within = |names: &[&str], low, high| -> Vec<Case> {
        let one = |name: &&str| by_element(name, vec![F(draw.between(&dims, low, high))]);
        names.iter().map(one).collect()
    };
    cases.extend(within(&["Acos", "Asin", "Atanh"], -0.9, 0.9));
    cases.extend(within(&["Acosh"], 1.1, 5.0));
    cases.extend(within(&["Log", "Reciprocal", "Sqrt"], 0.1, 5.0));
    cases.extend(within(&["Tan"], -1.2, 1.2));
    let odd = vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, 1.0];
    let tests = ["IsNaN", "IsInf"].map(|name| case(name, vec![F((vec![5], odd.clone()))]));
    cases.extend(tests);
    let alpha = draw.size(1, 5) as f32 * 0.5;
    for name in ["Celu", "Elu", "LeakyRelu", "Swish", "ThresholdedRelu"] {
        cases.push(by_element(name, vec![F(draw.spread(&dims))]).float("alpha", alpha));
    }
    cases.push(by_element("Gelu", vec![F(draw.spread(&dims))]).text("approximate", "tanh"));
    cases.push(case("IsInf", vec![F((vec![5], odd))]).int("detect_negative", 0));
    cases
}

fn pairs(draw: &mut Draw) -> Vec<Case> {
    let [n, c, w] = draw.dims(1, 5);
    let (wide, thin) = ([n, c, w], [c, 1]);
    let mut cases = Vec::new();
    for name in ["Add", "Sub", "Mul", "Max", "Min", "PRelu"] {
        let two = vec![F(draw.spread(&wide)), F(draw.spread(&thin))];
        cases.push(by_element(name, two));
    }
    for name in ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"] {
        cases.push(case(
            name,
            vec![F(draw.floats(&thin)), F(draw.floats(&wide))],
        ));
    }
    for name in ["Max", "Mean", "Min", "Sum"] {
        let three = [&wide[..], &thin, &[]].map(|dims| F(draw.spread(dims)));
        cases.push(by_element(name, three.into()));
    }
    for name in ["And", "Or", "Xor", "Equal"] {
        cases.push(case(
            name,
            vec![R(draw.truths(&wide)), R(draw.truths(&thin))],
        ));
    }
    let powers = vec![
        F(draw.between(&wide, 0.2, 3.0)),
        F(draw.between(&thin, -2.0, 2.0)),
    ];
    cases.push(by_element("Pow", powers));
    let parts = vec![F(draw.spread(&wide)), F(draw.spread(&thin))];
    cases.push(by_element("Div", parts));
    let rest = vec![F(draw.spread(&wide)), F(draw.spread(&thin))];
    cases.push(by_element("Mod", rest).int("fmod", 1));
    cases.push(case("Not", vec![R(draw.truths(&wide))]));
    let choice = vec![
        R(draw.truths(&thin)),
        F(draw.floats(&wide)),
        F(draw.floats(&[w])),
    ];
    cases.push(case("Where", choice).exact());
    let bounds = [-1.5, 2.5].map(|it| F((vec![], vec![it])));
    cases.push(case(
        "Clip",
        [F(draw.floats(&wide))].into_iter().chain(bounds).collect(),
    ));
    cases
}

fn integers(draw: &mut Draw) -> Vec<Case> {
    let [n, c] = draw.dims(1, 6);
    let mut two = |name| case(name, vec![R(draw.words(&[n, c])), R(draw.words(&[c]))]);
    let names = [
        "Add",
        "Sub",
        "Mul",
        "Max",
        "Min",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
        "Equal",
        "Greater",
        "Less",
    ];
    let mut cases: Vec<Case> = names.map(&mut two).into();
    for name in ["Abs", "BitwiseNot", "Neg", "Relu", "Sign"] {
        cases.push(case(name, vec![R(draw.words(&[n, c]))]));
    }
    let whole = |draw: &mut Draw, end| {
        let values = (0..n * c).map(|_| draw.size(0, end) as u32);
        R(Tensor::from_vec([n, c], values.collect()).unwrap())
    };
    for direction in ["LEFT", "RIGHT"] {
        let given = vec![whole(draw, 1 << 20), whole(draw, 33)];
        cases.push(case("BitShift", given).text("direction", direction));
    }
    let by = Tensor::from_vec([1], vec![draw.size(1, 9) as i32]).unwrap();
    cases.push(case("Mod", vec![R(draw.words(&[n, c])), H(by.clone())]));
    cases.push(case("Div", vec![R(draw.words(&[n, c])), H(by)]));
    cases
}

fn reductions(draw: &mut Draw) -> Vec<Case> {
    let dims = [draw.size(1, 3), draw.size(1, 150), draw.size(1, 4)];
    let (axis, keeps) = (draw.size(0, 2) as i64, draw.flag());
    let axes = [vec![axis], vec![axis, (axis + 1) % 3 - 3], vec![-1, 1, 0]];
    let axes = &axes[draw.size(0, 2)];
    let mut cases = Vec::new();
    let names = [
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceSum",
        "ReduceSumSquare",
    ];
    for name in names {
        let given = vec![F(draw.floats(&dims)), list(axes)];
        cases.push(case(name, given).int("keepdims", keeps));
        cases.push(case(name, vec![F(draw.floats(&dims))]));
    }
    let small = [draw.size(1, 4), draw.size(1, 6)];
    for name in ["ReduceProd", "ReduceLogSum"] {
        let given = vec![F(draw.between(&small, 0.5, 1.5)), list(&[-1])];
        cases.push(case(name, given).int("keepdims", keeps));
    }
    for name in ["ArgMax", "ArgMin"] {
        let last = draw.flag();
        let few = vec![F((
            dims.into(),
            draw.places(&dims, 5)
                .to_vec::<i64>()
                .unwrap()
                .iter()
                .map(|&it| it as f64)
                .collect(),
        ))];
        let place = case(name, few).int("axis", axis - 3).int("keepdims", keeps);
        cases.push(place.int("select_last_index", last));
    }
    for name in ["Softmax", "LogSoftmax"] {
        cases.push(case(name, vec![F(draw.floats(&dims))]).int("axis", axis));
    }
    let count = draw.size(1, dims[axis as usize]) as i64;
    let top = case("TopK", vec![F(draw.floats(&dims)), list(&[count])]).outputs(2);
    cases.push(top.exact().int("axis", axis).int("largest", keeps));
    cases
}

fn images(draw: &mut Draw) -> Vec<Case> {
    let mut cases = Vec::new();
    for rank in 1..=3usize {
        let (groups, each, filters) = (draw.size(1, 2), draw.size(1, 3), draw.size(1, 3));
        let spatial: Vec<usize> = (0..rank).map(|_| draw.size(4, 7)).collect();
        let kernel: Vec<usize> = (0..rank).map(|_| draw.size(1, 3)).collect();
        let stride = vec![draw.size(1, 2) as i64; rank];
        let pads: Vec<i64> = kernel
            .iter()
            .chain(&kernel)
            .map(|&k| (k / 2) as i64)
            .collect();
        let shape = |first: &[usize], rest: &[usize]| [first, rest].concat();
        let image = shape(&[draw.size(1, 2), groups * each], &spatial);
        let window = |case: Case| case.ints("strides", &stride).ints("pads", &pads);
        let weights = shape(&[groups * filters, each], &kernel);
        let given = vec![
            F(draw.floats(&image)),
            F(draw.floats(&weights)),
            F(draw.floats(&[groups * filters])),
        ];
        cases.push(window(case("Conv", given)).int("group", groups as i64));
        let weights = shape(&[groups * each, filters], &kernel);
        let given = vec![F(draw.floats(&image)), F(draw.floats(&weights))];
        cases.push(window(case("ConvTranspose", given)).int("group", groups as i64));
        let kernel: Vec<i64> = kernel.iter().map(|&size| size as i64).collect();
        let mut pool = |name| {
            let pool = window(case(name, vec![F(draw.floats(&image))]));
            pool.ints("kernel_shape", &kernel)
        };
        cases.push(pool("MaxPool").outputs(2));
        cases.push(pool("MaxPool").int("ceil_mode", 1));
        cases.push(pool("AveragePool").int("count_include_pad", 1));
        cases.push(pool("AveragePool").int("ceil_mode", 1));
        cases.push(pool("LpPool").int("p", 2));
        cases.push(pool("LpPool").int("p", 1));
        for name in ["GlobalAveragePool", "GlobalMaxPool"] {
            cases.push(case(name, vec![F(draw.floats(&image))]));
        }
        let size = draw.size(1, 4) as i64;
        let lrn = case("LRN", vec![F(draw.floats(&image))]).int("size", size);
        cases.push(lrn.float("alpha", 0.01).float("bias", 1.5));
    }
    let block = draw.size(1, 3);
    let [n, c, h, w] = draw.dims(1, 3);
    for mode in ["DCR", "CRD"] {
        let deep = F(draw.floats(&[n, c * block * block, h, w]));
        let deep = case("DepthToSpace", vec![deep]).text("mode", mode);
        cases.push(deep.exact().int("blocksize", block as i64));
    }
    let wide = F(draw.floats(&[n, c, h * block, w * block]));
    cases.push(
        case("SpaceToDepth", vec![wide])
            .exact()
            .int("blocksize", block as i64),
    );
    cases
}

fn norms(draw: &mut Draw) -> Vec<Case> {
    let (n, groups, each, w) = (
        draw.size(1, 3),
        draw.size(1, 3),
        draw.size(2, 3),
        draw.size(4, 70),
    );
    let channels = groups * each;
    let dims = [n, channels, w];
    let mut cases = Vec::new();
    let (scale, bias) = (draw.floats(&[channels]), draw.floats(&[channels]));
    let by_channel = |x: Floats| vec![F(x), F(scale.clone()), F(bias.clone())];
    cases.push(case(
        "InstanceNormalization",
        by_channel(draw.floats(&dims)),
    ));
    let group = case("GroupNormalization", by_channel(draw.floats(&dims)));
    cases.push(group.int("num_groups", groups as i64));
    let statistics = [
        draw.floats(&[channels]),
        draw.between(&[channels], 0.5, 2.0),
    ];
    let all = || statistics.iter().cloned().map(F);
    let known = by_channel(draw.floats(&dims)).into_iter().chain(all());
    cases.push(case("BatchNormalization", known.collect()));
    let trained = by_channel(draw.floats(&dims)).into_iter().chain(all());
    let trained = case("BatchNormalization", trained.collect()).outputs(3);
    cases.push(trained.int("training_mode", 1));
    let axis = draw.size(1, 2);
    let (scale, bias) = (draw.floats(&dims[axis..]), draw.floats(&dims[axis..]));
    let layer = vec![F(draw.floats(&dims)), F(scale.clone()), F(bias)];
    cases.push(
        case("LayerNormalization", layer)
            .outputs(3)
            .int("axis", axis as i64),
    );
    let layer = vec![F(draw.floats(&dims)), F(scale.clone())];
    cases.push(case("LayerNormalization", layer).int("axis", axis as i64 - 3));
    let root = vec![F(draw.floats(&dims)), F(scale)];
    cases.push(case("RMSNormalization", root).int("axis", axis as i64));
    cases
}

fn products(draw: &mut Draw) -> Vec<Case> {
    let [m, k, n] = draw.dims(1, 40);
    let [a, b] = draw.dims(1, 3);
    let mut product = |left: &[usize], right: &[usize]| {
        case("MatMul", vec![F(draw.floats(left)), F(draw.floats(right))])
    };
    let mut cases = vec![
        product(&[a, 1, m, k], &[b, k, n]),
        product(&[k], &[b, k, n]),
        product(&[m, k], &[k]),
        product(&[1, k], &[k, n]),
    ];
    let (turned, also) = (draw.flag(), draw.flag());
    let left = if turned == 1 { [k, m] } else { [m, k] };
    let right = if also == 1 { [n, k] } else { [k, n] };
    let given = [&left[..], &right, &[m, 1]].map(|dims| F(draw.floats(dims)));
    let gemm = case("Gemm", given.into())
        .int("transA", turned)
        .int("transB", also);
    cases.push(gemm.float("alpha", 0.5).float("beta", 1.5));
    cases
}

fn sequences(draw: &mut Draw) -> Vec<Case> {
    let [n, heads, group] = draw.dims(1, 3);
    let (queries, keys, past, width) = (
        draw.size(1, 9),
        draw.size(1, 80),
        draw.size(1, 9),
        2 * draw.size(1, 8),
    );
    let shapes = [
        vec![n, heads * group, queries, width],
        vec![n, heads, keys, width],
        vec![n, heads, keys, width + 1],
    ];
    let mut masks = Draw { state: draw.next() };
    let three = |draw: &mut Draw| {
        shapes
            .iter()
            .map(|dims| F(draw.floats(dims)))
            .collect::<Vec<_>>()
    };
    let mut with = |more: Vec<Given>| {
        let mut given = three(draw);
        given.extend(more);
        case("Attention", given)
    };
    let mut cases = vec![
        with(vec![]).int("is_causal", 1),
        with(vec![]).float("softcap", 2.0).float("scale", 0.3),
    ];
    let added = F(masks.floats(&[queries, keys]));
    cases.push(with(vec![added]));
    // Each query sees its first key, so that none is without any.
    let mut seen = masks.truths(&[n, 1, queries, keys]).to_bools().unwrap();
    seen.iter_mut().step_by(keys).for_each(|it| *it = true);
    let seen = Tensor::from_bools([n, 1, queries, keys], &seen).unwrap();
    cases.push(with(vec![R(seen)]));
    let (old_keys, old_values) = ([n, heads, past, width], [n, heads, past, width + 1]);
    let before = vec![
        Nothing,
        F(masks.floats(&old_keys)),
        F(masks.floats(&old_values)),
    ];
    cases.push(with(before).int("is_causal", 1).outputs(3));
    for mode in 0..4 {
        cases.push(with(vec![]).int("qk_matmul_output_mode", mode).outputs(4));
    }
    let flat = [
        vec![n, queries, heads * group * width],
        vec![n, keys, heads * width],
        vec![n, keys, heads * width],
    ];
    let flat = flat.iter().map(|dims| F(masks.floats(dims))).collect();
    let flat = case("Attention", flat).int("q_num_heads", (heads * group) as i64);
    cases.push(flat.int("kv_num_heads", heads as i64));
    let angles = || [vec![12, width / 2], vec![12, width / 2]];
    for interleaved in 0..2 {
        let [cosines, sines] = angles().map(|dims| F(masks.between(&dims, -1.0, 1.0)));
        let turned = F(masks.floats(&[n, heads, queries, width]));
        let places = H(masks.places(&[n, queries], 12));
        let rotary = case("RotaryEmbedding", vec![turned, cosines, sines, places]);
        cases.push(rotary.int("interleaved", interleaved));
    }
    cases
}

fn losses(draw: &mut Draw) -> Vec<Case> {
    let (n, classes, w) = (draw.size(1, 4), draw.size(2, 6), draw.size(1, 4));
    let mut cases = Vec::new();
    for reduction in ["mean", "sum", "none"] {
        for (dims, labels) in [
            (vec![n, classes], vec![n]),
            (vec![n, classes, w], vec![n, w]),
        ] {
            // The first is not ignored, so that a mean is of something.
            let mut wanted = draw.places(&labels, classes).to_vec::<i64>().unwrap();
            wanted[0] = 1;
            let wanted = H(Tensor::from_vec(&labels[..], wanted).unwrap());
            let weights = F(draw.between(&[classes], 0.5, 2.0));
            let loss = case(
                "SoftmaxCrossEntropyLoss",
                vec![F(draw.floats(&dims)), wanted, weights],
            );
            cases.push(
                loss.text("reduction", reduction)
                    .int("ignore_index", 0)
                    .outputs(2),
            );
            let wanted = H(draw.places(&labels, classes));
            let loss = case(
                "NegativeLogLikelihoodLoss",
                vec![F(draw.floats(&dims)), wanted],
            );
            cases.push(loss.text("reduction", reduction));
        }
    }
    cases
}

fn moves(draw: &mut Draw) -> Vec<Case> {
    let dims = draw.dims::<3>(1, 5);
    let [n, c, w] = dims;
    let mut x = || F(draw.floats(&dims));
    let axis = (n + c + w) % 3;
    let mut longer = dims;
    longer[axis] += 2;
    let mut cases = vec![
        case("Flatten", vec![x()]).int("axis", axis as i64),
        case("Identity", vec![x()]),
        case("Transpose", vec![x()]).ints("perm", &[2, 0, 1]),
        case("Dropout", vec![x()]).outputs(2),
        case("Expand", vec![x(), list(&[2, n as i64, 1, w as i64])]),
        case("Reshape", vec![x(), list(&[0, -1])]),
        case("Squeeze", vec![x()]),
        case("Unsqueeze", vec![x(), list(&[0, -1])]),
        case("Tile", vec![x(), list(&[2, 1, 3])]),
        case(
            "Pad",
            vec![x(), list(&[0, 1, 0, 2, 0, 1]), F((vec![], vec![0.5]))],
        ),
        case("Pad", vec![x(), list(&[1, 1]), Nothing, list(&[-1])]).text("mode", "edge"),
        case(
            "Slice",
            vec![
                x(),
                list(&[-1]),
                list(&[i64::MIN]),
                list(&[axis as i64]),
                list(&[-2]),
            ],
        ),
        case("Cast", vec![x()]).int("to", DType::I32.onnx_code().into()),
        case("Cast", vec![x()]).int("to", DType::Bool.onnx_code().into()),
    ];
    let joined = vec![x(), F(draw.floats(&longer)), F(draw.floats(&dims))];
    cases.push(case("Concat", joined).int("axis", axis as i64 - 3));
    let parts = list(&[1, longer[axis] as i64 - 2, 1]);
    let split = case("Split", vec![F(draw.floats(&longer)), parts]).outputs(3);
    cases.push(split.int("axis", axis as i64));
    let like = Tensor::scalar(1i32);
    cases.push(case("CastLike", vec![F(draw.floats(&dims)), R(like)]));
    cases.into_iter().map(Case::exact).collect()
}

fn gathers(draw: &mut Draw) -> Vec<Case> {
    let dims = draw.dims::<3>(1, 5);
    let axis = draw.size(0, 2);
    let mut indices = dims;
    indices[axis] = draw.size(1, 4);
    let shape = draw.dims::<2>(1, 3);
    let places = H(draw.places(&shape, dims[axis]));
    let gather = case("Gather", vec![F(draw.floats(&dims)), places]).int("axis", axis as i64);
    let places = H(draw.places(&indices, dims[axis]));
    let elements = case("GatherElements", vec![F(draw.floats(&dims)), places]);
    let count = draw.size(1, 4);
    let tuples = H(draw.places(&[count, 2], dims[0].min(dims[1])));
    let tuple = case("GatherND", vec![F(draw.floats(&dims)), tuples]);
    let tuples = H(draw.places(&[dims[0], count, 1], dims[1]));
    let batched = case("GatherND", vec![F(draw.floats(&dims)), tuples]).int("batch_dims", 1);
    let mut cases = vec![gather, elements.int("axis", axis as i64), tuple, batched];
    cases = cases.into_iter().map(Case::exact).collect();
    let names = ["none", "add", "mul", "max", "min"];
    let reduction = names[draw.size(0, 4)];
    for name in ["Scatter", "ScatterElements"] {
        let given = vec![
            F(draw.floats(&dims)),
            H(draw.places(&indices, dims[axis])),
            F(draw.floats(&indices)),
        ];
        let scatter = case(name, given).int("axis", axis as i64);
        cases.push(match name {
            "Scatter" => scatter,
            _ => scatter.text("reduction", reduction),
        });
    }
    let given = vec![
        F(draw.floats(&dims)),
        H(draw.places(&[count, 1], dims[0])),
        F(draw.floats(&[count, dims[1], dims[2]])),
    ];
    cases.push(case("ScatterND", given).text("reduction", reduction));
    let rows = draw.size(1, dims[1]);
    let given = vec![
        F(draw.floats(&dims)),
        F(draw.floats(&[dims[0], rows, dims[2]])),
        H(draw.places(&[dims[0]], dims[1] - rows + 1)),
    ];
    cases.push(case("TensorScatter", given).exact());
    cases
}

/// The same moves of integers and truths.
fn shapes(draw: &mut Draw) -> Vec<Case> {
    let dims = draw.dims::<2>(1, 6);
    let words = || vec![1, 0];
    vec![
        case("Transpose", vec![R(draw.words(&dims))]).ints("perm", &words()),
        case("Concat", vec![R(draw.truths(&dims)), R(draw.truths(&dims))]).int("axis", 0),
        case("Expand", vec![R(draw.truths(&dims)), list(&[2, 1, 1])]),
        case(
            "Slice",
            vec![R(draw.bytes(DType::U8, &dims)), list(&[1]), list(&[9])],
        ),
        case(
            "Gather",
            vec![R(draw.bytes(DType::I8, &dims)), list(&[0, -1])],
        ),
    ]
}

fn quantised(draw: &mut Draw) -> Vec<Case> {
    let [m, k, n] = draw.dims(1, 9);
    let scale = |value: f32| R(Tensor::scalar(value));
    let zero = || R(Tensor::scalar(3u8));
    let singles = |(dims, values): Floats| R(tensor(DType::F32, &dims, &values));
    // Scales are powers of two, so that a quotient between two steps is the same everywhere.
    vec![
        case(
            "DequantizeLinear",
            vec![R(draw.bytes(DType::U8, &[m, k])), scale(0.25), zero()],
        ),
        case(
            "QuantizeLinear",
            vec![singles(draw.floats(&[m, k])), scale(0.0625), zero()],
        ),
        case(
            "DynamicQuantizeLinear",
            vec![singles((
                vec![3],
                vec![0.0, 15.9375 * draw.size(1, 3) as f64, 0.5],
            ))],
        )
        .outputs(3),
        case(
            "MatMulInteger",
            vec![
                R(draw.bytes(DType::U8, &[m, k])),
                R(draw.bytes(DType::I8, &[k, n])),
                zero(),
            ],
        ),
        case(
            "QLinearMatMul",
            vec![
                R(draw.bytes(DType::U8, &[m, k])),
                scale(0.25),
                zero(),
                R(draw.bytes(DType::U8, &[k, n])),
                scale(0.5),
                zero(),
                scale(64.0),
                zero(),
            ],
        ),
    ]
}
