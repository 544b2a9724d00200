//! Tests training steps of the bundled digit classifier against PyTorch, and the errors for models
//! that cannot be trained.

use souk_memory::npy;

use super::*;
use crate::graph::InputType;

/// `scheduler/tests/reference/training.py` printed these losses.
const ADAMW: [f64; 20] = [
    16.618235, 17.656204, 18.359743, 18.395876, 18.814407, 16.051178, 16.879471, 14.796371,
    16.684757, 14.571128, 11.850435, 12.27632, 12.590991, 13.161526, 13.273479, 10.874269,
    11.608454, 10.268806, 11.888832, 9.2490273,
];

/// The same for stochastic gradient descent.
const SGD: [f64; 20] = [
    16.618235, 17.946241, 18.733849, 18.500364, 18.18598, 14.59045, 13.719415, 10.920741,
    12.197349, 9.4766579, 9.0529613, 7.5699301, 7.9278445, 7.8154621, 6.4728947, 5.8196607,
    5.1932654, 4.3005123, 4.07407, 3.6823835,
];

/// The number of images of a batch.
const BATCH: usize = 36;

fn digits(name: &str) -> bytes::Bytes {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../testnet/models/digits/");
    std::fs::read(format!("{folder}{name}")).unwrap().into()
}

fn digits_batch() -> BTreeMap<String, InputType> {
    let images = InputType {
        dtype: DType::F32,
        dims: vec![BATCH, 1, 8, 8],
    };
    [("images".to_owned(), images)].into()
}

fn labels_type(dtype: DType, dims: &[usize]) -> InputType {
    let dims = dims.to_vec();
    InputType { dtype, dims }
}

fn recipe(optimizer: Optimizer) -> Recipe {
    Recipe {
        loss: Loss::CrossEntropy,
        optimizer,
        output: None,
        selection: Selection::AllBut(Vec::new()),
        gradient_norm_max: None,
        has_evaluations: false,
    }
}

fn adamw() -> Optimizer {
    Optimizer::AdamW(AdamW::default())
}

fn build(recipe: &Recipe) -> Result<StepGraph, GradientError> {
    let labels = labels_type(DType::I64, &[BATCH]);
    build_step_graph(
        digits("digits.onnx"),
        &digits_batch(),
        ("labels", &labels),
        recipe,
    )
}

fn rows(all: &Tensor, step: usize) -> Tensor {
    let count = all.dims()[0];
    let width = all.bytes().len() / count;
    let start = step * BATCH % count * width;
    let bytes = all.bytes().slice(start..start + BATCH * width);
    let mut dims = all.dims().to_vec();
    dims[0] = BATCH;
    Tensor::new(all.dtype(), souk_memory::Shape::new(dims).unwrap(), bytes).unwrap()
}

/// Trains the classifier on other labels, and returns the losses and the trained model.
fn train(optimizer: Optimizer, learning_rate: f64, steps: usize) -> (Vec<f64>, bytes::Bytes) {
    train_by(&recipe(optimizer), learning_rate, steps)
}

/// Trains by a recipe. If it has evaluations, each batch is evaluated before its step, which must
/// have no effect but the loss of that step.
fn train_by(recipe: &Recipe, learning_rate: f64, steps: usize) -> (Vec<f64>, bytes::Bytes) {
    let step_graph = build(recipe).unwrap();
    let subgraph = Subgraph {
        model: step_graph.model.clone(),
        weights: BTreeMap::new(),
    };
    let program = cpu().compile(&subgraph).unwrap();
    let images = npy::read(&digits("images.npy")).unwrap();
    let labels = npy::read(&digits("labels.npy")).unwrap();
    let moved = labels.to_vec::<i64>().unwrap();
    let moved: Vec<i64> = moved.iter().map(|digit| (digit + 3) % 10).collect();
    let labels = Tensor::from_vec(labels.dims(), moved).unwrap();
    let mut states = step_graph.states.clone();
    let mut losses = Vec::new();
    for step in 0..steps {
        let mut given = states.clone();
        given.insert("images".to_owned(), rows(&images, step));
        given.insert("labels".to_owned(), rows(&labels, step));
        let mut run = |schedule: Tensor| {
            given.insert(StepGraph::schedule_input(), schedule);
            program.run(&given).unwrap().outputs
        };
        let loss_of = |outputs: &BTreeMap<String, Tensor>| {
            outputs[step_graph::LOSS].to_vec::<f32>().unwrap()[0]
        };
        let held_out = recipe.has_evaluations.then(|| {
            let outputs = run(step_graph.evaluation_schedule());
            assert_eq!(step_graph.next_states(&outputs).unwrap(), states);
            loss_of(&outputs)
        });
        let outputs = run(step_graph.schedule(step as u64, learning_rate));
        let loss = loss_of(&outputs);
        assert_eq!(held_out.unwrap_or(loss).to_bits(), loss.to_bits());
        losses.push(f64::from(loss));
        states = step_graph.next_states(&outputs).unwrap();
    }
    let vector = &states[&StepGraph::parameters_input()];
    let tuned = step_graph
        .parameters
        .write_to_model(digits("digits.onnx"), vector);
    (losses, tuned.unwrap())
}

/// The most that a loss may differ from PyTorch's, relative to it.
const LOSS_TOLERANCE: f64 = 1e-5;

fn assert_losses(found: &[f64], expected: &[f64]) {
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (found - expected).abs() / expected;
        assert!(
            difference <= LOSS_TOLERANCE,
            "step {step}: {found}, PyTorch {expected}"
        );
    }
}

#[test]
fn twenty_steps_of_adamw_have_the_losses_of_pytorch() {
    let (losses, _) = train(adamw(), 2e-4, ADAMW.len());
    assert_losses(&losses, &ADAMW);
}

#[test]
fn twenty_steps_of_sgd_have_the_losses_of_pytorch() {
    let sgd = Optimizer::Sgd(Sgd {
        momentum: 0.9,
        weight_decay: 1e-3,
    });
    let (losses, tuned) = train(sgd, 1e-5, SGD.len());
    assert_losses(&losses, &SGD);
    // The tuned model is the old one with other numbers in the same places.
    let (old, new) = (
        souk_onnx::decode_model(digits("digits.onnx"))
            .unwrap()
            .graph
            .unwrap(),
        souk_onnx::decode_model(tuned).unwrap().graph.unwrap(),
    );
    assert_eq!(old.node, new.node);
    for (old, new) in old.initializer.iter().zip(&new.initializer) {
        assert_eq!((old.name(), &old.dims), (new.name(), &new.dims));
        assert_ne!(old.raw_data, new.raw_data, "{}", old.name());
    }
}

#[test]
fn evaluations_give_the_losses_of_pytorch_and_change_no_bit_of_the_training() {
    let momentum = Optimizer::Sgd(Sgd {
        momentum: 0.9,
        weight_decay: 1e-3,
    });
    for (optimizer, rate, expected) in [(adamw(), 2e-4, ADAMW), (momentum, 1e-5, SGD)] {
        let without = train(optimizer, rate, 3);
        let with = Recipe {
            has_evaluations: true,
            ..recipe(optimizer)
        };
        let with = train_by(&with, rate, 3);
        assert_losses(&with.0, &expected[..3]);
        assert_eq!(with, without);
    }
}

/// Returns the change of each parameter in one step of gradient descent with the rate 1.
fn first_change(gradient_norm_max: Option<f64>) -> Vec<f64> {
    let with = Recipe {
        gradient_norm_max,
        ..recipe(Optimizer::Sgd(Sgd {
            momentum: 0.0,
            weight_decay: 0.0,
        }))
    };
    let step = build(&with).unwrap();
    let subgraph = Subgraph {
        model: step.model.clone(),
        weights: BTreeMap::new(),
    };
    let mut given = step.states.clone();
    let images = npy::read(&digits("images.npy")).unwrap();
    let labels = npy::read(&digits("labels.npy")).unwrap();
    given.insert("images".to_owned(), rows(&images, 0));
    given.insert("labels".to_owned(), rows(&labels, 0));
    given.insert(StepGraph::schedule_input(), step.schedule(0, 1.0));
    let outputs = cpu().compile(&subgraph).unwrap().run(&given).unwrap();
    let states = step.next_states(&outputs.outputs).unwrap();
    let vector = |all: &BTreeMap<String, Tensor>| all[&StepGraph::parameters_input()].to_f64s();
    let (old, new) = (vector(&step.states).unwrap(), vector(&states).unwrap());
    old.iter().zip(&new).map(|(old, new)| old - new).collect()
}

#[test]
fn a_gradient_longer_than_the_largest_norm_is_scaled_down_to_it() {
    let norm = |change: &[f64]| change.iter().map(|it| it * it).sum::<f64>().sqrt();
    let free = first_change(None);
    let length = norm(&free);
    // Differences of parameters near 1 have errors of the parameters' precision.
    let is_like = |found: &[f64], factor: f64| {
        let pairs = free.iter().zip(found);
        pairs.fold(0.0_f64, |most, (free, found)| {
            most.max((free * factor - found).abs())
        })
    };
    let clipped = first_change(Some(length / 4.0));
    let difference = is_like(&clipped, 0.25);
    assert!(difference <= 1e-5 * length, "{difference} of {length}");
    assert!((norm(&clipped) / length - 0.25).abs() < 1e-3);
    assert_eq!(first_change(Some(length * 2.0)), free);
}

#[test]
fn a_step_feeds_its_states_to_the_next_one() {
    let step = build(&recipe(adamw())).unwrap();
    let mut bindings = Bindings::new()
        .with_input("images", DType::F32, &[BATCH, 1, 8, 8])
        .with_input("labels", DType::I64, &[BATCH])
        .with_input(StepGraph::schedule_input(), DType::F32, &[3]);
    for (name, state) in &step.states {
        bindings = bindings.with_input(name.as_str(), state.dtype(), state.dims());
    }
    let graph = Graph::import(step.model.clone(), &bindings).unwrap();
    let fed = graph.feedback_outputs();
    let fed = fed
        .iter()
        .map(|(_, input)| graph.value(*input).name.clone());
    let fed: BTreeSet<String> = fed.collect();
    assert_eq!(fed, step.states.keys().cloned().collect());
    assert_eq!(graph.outputs().len(), 1 + fed.len());
}

#[test]
fn states_of_another_shape_are_none() {
    let step = build(&recipe(adamw())).unwrap();
    let next = |name: &String| format!("{name}.next");
    let states = step.states.iter();
    let good: BTreeMap<String, Tensor> =
        states.map(|(name, it)| (next(name), it.clone())).collect();
    assert_eq!(step.next_states(&good), Some(step.states.clone()));
    let name = next(&StepGraph::parameters_input());
    let shorter = Tensor::from_vec([1], vec![0.0_f32]).unwrap();
    let ints = good[&name].dims().iter().product();
    let ints = Tensor::from_vec(good[&name].dims(), vec![0_i32; ints]).unwrap();
    for bad in [Some(shorter), Some(ints), None] {
        let mut outputs = good.clone();
        match bad {
            Some(bad) => drop(outputs.insert(name.clone(), bad)),
            None => drop(outputs.remove(&name)),
        }
        assert_eq!(step.next_states(&outputs), None);
    }
}

#[test]
fn a_frozen_initialiser_has_no_part_in_the_parameters() {
    let all = build(&recipe(adamw())).unwrap();
    let frozen = vec!["block".to_owned(), "stem".to_owned()];
    let some = build(&Recipe {
        selection: Selection::AllBut(frozen),
        ..recipe(adamw())
    });
    let some = some.unwrap();
    assert_eq!((all.parameters.count(), some.parameters.count()), (30, 4));
    let heads = 64 * 256 + 64 + 10 * 64 + 10;
    assert_eq!(some.parameters.elements(), heads);
    // Nothing before the first trained layer is differentiated.
    let nodes = |step: &StepGraph| {
        let model = souk_onnx::decode_model(step.model.clone()).unwrap();
        model.graph.unwrap().node.len()
    };
    assert!(nodes(&some) < nodes(&all) / 3);
    assert_eq!(some.classes, Some(10));
}

#[test]
fn what_cannot_be_trained_is_refused_with_its_reason() {
    let labels = labels_type(DType::I64, &[BATCH]);
    let refused = |target: (&str, &InputType), recipe: &Recipe| {
        let built = build_step_graph(digits("digits.onnx"), &digits_batch(), target, recipe);
        built.unwrap_err()
    };
    let wrong = labels_type(DType::F32, &[BATCH]);
    let error = refused(("labels", &wrong), &recipe(adamw()));
    assert!(matches!(error, GradientError::Target(_)), "{error}");
    let short = labels_type(DType::I64, &[BATCH - 1]);
    let error = refused(("labels", &short), &recipe(adamw()));
    assert!(matches!(error, GradientError::Target(_)), "{error}");
    let error = refused(("images", &labels), &recipe(adamw()));
    assert!(matches!(error, GradientError::Name { .. }), "{error}");
    let frozen = |prefix: &str| Recipe {
        selection: Selection::AllBut(vec![prefix.to_owned()]),
        ..recipe(adamw())
    };
    let error = refused(("labels", &labels), &frozen("tail"));
    assert!(
        matches!(error, GradientError::UnknownPrefix { .. }),
        "{error}"
    );
    let error = refused(("labels", &labels), &frozen(""));
    assert!(
        matches!(error, GradientError::NothingToTrain { .. }),
        "{error}"
    );
    let other = [("pictures".to_owned(), labels.clone())].into();
    let target = ("labels", &labels);
    let error = build_step_graph(digits("digits.onnx"), &other, target, &recipe(adamw()));
    let expected = "the model has no input \"pictures\"; its inputs are [\"images\"]";
    assert_eq!(error.unwrap_err().to_string(), expected);
    let output = Recipe {
        output: Some("shares".to_owned()),
        ..recipe(adamw())
    };
    let error = refused(("labels", &labels), &output);
    assert!(matches!(error, GradientError::Output { .. }), "{error}");
}
