//! Tests which examples each step of training gets, the checks of the data, the loss of several
//! workers, and evaluations.

use souk_roles::train::{RunRequest, StepAnswer};
use souk_scheduler::gradient::step_graph;

use super::sent::{SentRequests, to_requests};
use super::*;

#[test]
fn each_pass_has_each_example_once_in_an_order_of_its_own() {
    let first = shuffle((0..100).collect(), 7, 0);
    let second = shuffle((0..100).collect(), 7, 1);
    assert_ne!(first, second);
    assert_eq!(first, shuffle((0..100).collect(), 7, 0));
    for mut order in [first, second] {
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }
    // A repeated run gets the same batches, also in a later version.
    assert_eq!(shuffle((0..8).collect(), 7, 3), [7, 1, 0, 3, 5, 2, 4, 6]);
}

fn data(images: &[usize], labels: Vec<i64>) -> TrainingData {
    let count = images.iter().product();
    let images = Tensor::from_vec(images, vec![0.5_f32; count]).unwrap();
    TrainingData {
        inputs: [("images".to_owned(), images)].into(),
        target_name: "labels".to_owned(),
        target: Tensor::from_vec([labels.len()], labels).unwrap(),
    }
}

fn settings(batch: usize) -> TrainingSettings {
    TrainingSettings {
        steps: 10,
        batch,
        learning_rate: LearningRate::constant(1e-3),
        order: ExampleOrder::Shuffled(0),
        recipe: Recipe {
            loss: Loss::CrossEntropy,
            optimizer: souk_scheduler::gradient::Optimizer::AdamW(Default::default()),
            output: None,
            selection: souk_scheduler::gradient::Selection::AllBut(Vec::new()),
            gradient_norm_max: None,
            has_evaluations: false,
        },
        workers: None,
    }
}

fn with_workers(steps: u64, count: usize, round_steps: u64) -> TrainingSettings {
    TrainingSettings {
        steps,
        order: ExampleOrder::OfRows,
        workers: Some(Workers { count, round_steps }),
        ..settings(2)
    }
}

fn prepare(data: TrainingData, settings: TrainingSettings) -> Result<Training, TrainingError> {
    prepare_with(data, settings, None)
}

fn prepare_with(
    data: TrainingData,
    settings: TrainingSettings,
    held_out: Option<TrainingData>,
) -> Result<Training, TrainingError> {
    let held_out = held_out.map(|examples| HeldOutData {
        examples,
        every_steps: 4,
    });
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../testnet/models/digits/digits.onnx"
    );
    let model = std::fs::read(path).unwrap().into();
    Training::prepare(model, data, settings, held_out.as_ref())
}

#[test]
fn a_step_gets_its_rows_of_all_tensors() {
    let mut data = data(&[5, 1, 8, 8], vec![4, 3, 2, 1, 0]);
    let rows: Vec<f32> = (0..5 * 64).map(|it| (it / 64) as f32).collect();
    let images = Tensor::from_vec([5, 1, 8, 8], rows).unwrap();
    data.inputs.insert("images".to_owned(), images);
    let training = prepare(data, settings(2)).unwrap();
    assert_eq!(training.batches_per_pass(), 2);
    for position in 0..6 {
        let given = training.step_inputs(position);
        assert_eq!(given["images"].dims(), [2, 1, 8, 8]);
        let images = given["images"].to_vec::<f32>().unwrap();
        let labels = given["labels"].to_vec::<i64>().unwrap();
        assert_eq!(labels, [4 - images[0] as i64, 4 - images[64] as i64]);
        assert_eq!(given[&StepGraph::schedule_input()].dims(), [3]);
    }
}

#[test]
fn workers_take_the_batches_in_turn_with_the_schedule_of_the_run() {
    let mut data = data(&[12, 1, 8, 8], vec![1; 12]);
    let rows: Vec<f32> = (0..12 * 64).map(|it| (it / 64) as f32).collect();
    let images = Tensor::from_vec([12, 1, 8, 8], rows).unwrap();
    data.inputs.insert("images".to_owned(), images);
    let training = prepare(data.clone(), with_workers(5, 2, 2)).unwrap();
    let alone = prepare(data.clone(), settings(2)).unwrap();
    let first_row = |training: &Training, position| {
        let given = training.step_inputs(position);
        given["images"].to_vec::<f32>().unwrap()[0] as usize
    };
    let mut taken = Vec::new();
    for (first, steps) in [(0, 2), (2, 2), (4, 1)] {
        for step in 0..steps {
            for worker in 0..2 {
                let leg = Leg {
                    worker,
                    first,
                    steps,
                };
                let leg = training.for_leg(leg, training.step.states.clone());
                assert_eq!(leg.steps(), steps);
                taken.push(first_row(&leg, step));
                let schedule = StepGraph::schedule_input();
                let of_run = alone.step_inputs(first + step);
                assert_eq!(leg.step_inputs(step)[&schedule], of_run[&schedule]);
            }
        }
    }
    assert_eq!(taken, [0, 2, 4, 6, 8, 10, 0, 2, 4, 6], "each batch once");
    assert_eq!(training.request_count(), 10);
    // What determines the result is in the hash, also the part of a worker.
    let subject = |settings| prepare(data.clone(), settings).unwrap().subject();
    let of_run = training.subject();
    assert_eq!(of_run, subject(with_workers(5, 2, 2)));
    assert_ne!(of_run, subject(with_workers(5, 2, 3)));
    assert_ne!(of_run, subject(with_workers(5, 3, 2)));
    let leg = |worker| {
        let leg = Leg {
            worker,
            first: 0,
            steps: 2,
        };
        training
            .for_leg(leg, training.step.states.clone())
            .subject()
    };
    assert!(leg(0) != leg(1) && leg(0) != of_run);
    let refused = prepare(data, with_workers(5, 65, 2)).unwrap_err();
    assert!(
        matches!(refused, TrainingError::Workers { .. }),
        "{refused}"
    );
}

#[test]
fn the_loss_of_a_step_has_the_terms_of_its_workers_batch() {
    let tokens = Tensor::from_vec([4, 2], vec![5_i64; 8]).unwrap();
    let data = TrainingData {
        inputs: [("tokens".to_owned(), tokens)].into(),
        target_name: "labels".to_owned(),
        target: Tensor::from_vec([4, 2], vec![1_i64, 2, 3, -100, -1, 4, -1, -1]).unwrap(),
    };
    let images = data_of_images(4);
    let mut training = prepare(images, with_workers(2, 2, 2)).unwrap();
    let leg = |training: &Training, worker| {
        let leg = Leg {
            worker,
            first: 0,
            steps: 2,
        };
        training.for_leg(leg, BTreeMap::new())
    };
    assert_eq!(leg(&training, 1).step_terms(0), 2, "examples");
    training.settings.recipe.loss = Loss::CountedCrossEntropy;
    training.data = data;
    assert_eq!(leg(&training, 0).step_terms(0), 3);
    assert_eq!(leg(&training, 1).step_terms(0), 1);
    assert_eq!(leg(&training, 1).step_terms(1), 1);
}

fn data_of_images(count: usize) -> TrainingData {
    data(&[count, 1, 8, 8], vec![1; count])
}

#[test]
fn data_that_does_not_fit_is_refused_with_its_place() {
    let labels = || vec![0_i64, 1, 2, 3];
    let images = [4, 1, 8, 8];
    let refused = |data, settings| prepare(data, settings).unwrap_err();
    let error = refused(data(&[3, 1, 8, 8], labels()), settings(2));
    assert!(
        matches!(
            error,
            TrainingError::Rows {
                found: 3,
                targets: 4,
                ..
            }
        ),
        "{error}"
    );
    let error = refused(data(&images, labels()), settings(5));
    assert!(matches!(error, TrainingError::Batch { .. }), "{error}");
    let error = refused(data(&images, vec![0, 1, 10, 3]), settings(2));
    let expected = "\"labels\" is 10 in row 2, but the model has the classes 0 to 9";
    assert_eq!(error.to_string(), expected);
    let mut spoilt = data(&images, labels());
    let mut values = vec![0.5_f32; 4 * 64];
    values[130] = f32::NAN;
    let values = Tensor::from_vec(images, values).unwrap();
    spoilt.inputs.insert("images".to_owned(), values);
    let error = refused(spoilt, settings(2));
    assert!(
        matches!(error, TrainingError::NotFinite { row: 2, .. }),
        "{error}"
    );
    let error = refused(
        data(&images, labels()),
        TrainingSettings {
            learning_rate: LearningRate::constant(f64::NAN),
            ..settings(2)
        },
    );
    assert!(
        matches!(error, TrainingError::LearningRate { .. }),
        "{error}"
    );
    let error = refused(data(&[4, 1, 8, 9], labels()), settings(2));
    assert!(matches!(error, TrainingError::Gradient(_)), "{error}");
}

#[test]
fn held_out_examples_come_in_whole_batches_and_leave_the_training_alone() {
    let some = |count: usize| data(&[count, 1, 8, 8], vec![1; count]);
    let without = prepare(some(4), settings(2)).unwrap();
    let with = prepare_with(some(4), settings(2), Some(some(7))).unwrap();
    let held_out = with.held_out.as_ref().unwrap();
    assert_eq!(
        (held_out.batch_count(), held_out.examples, held_out.left_out),
        (3, 6, 1)
    );
    // Before the first of ten steps, after 4, 8 and 10.
    assert_eq!(held_out.evaluation_count(10), 4);
    assert_eq!((with.request_count(), without.request_count()), (22, 10));
    assert_eq!(held_out.combine_losses(&[1.0, 2.0, 6.0]), 3.0);
    assert_ne!(with.subject(), without.subject());
    let other = prepare_with(some(4), settings(2), Some(data(&[7, 1, 8, 8], vec![2; 7])));
    assert_ne!(with.subject(), other.unwrap().subject());
    let (step, evaluation) = (with.step_inputs(0), with.evaluation_inputs(0));
    assert_eq!(
        step.keys().collect::<Vec<_>>(),
        evaluation.keys().collect::<Vec<_>>()
    );
    let schedule = StepGraph::schedule_input();
    assert_eq!(step[&schedule].dims(), evaluation[&schedule].dims());
    assert_ne!(step[&schedule], evaluation[&schedule]);
    let refused = |held_out| prepare_with(some(4), settings(2), Some(held_out)).unwrap_err();
    let error = refused(some(1)).to_string();
    assert_eq!(
        error,
        "of the held-out examples: 1 examples fill no batch of 2"
    );
    let error = refused(data(&[2, 1, 8, 9], vec![1; 2])).to_string();
    assert!(error.contains("another type or shape"), "{error}");
    let error = refused(data(&[2, 1, 8, 8], vec![1, 10])).to_string();
    assert!(error.contains("is 10 in row 1"), "{error}");
    let error = refused(some(1026)).to_string();
    assert!(error.contains("513 batches"), "{error}");
}

#[test]
fn a_batch_of_counted_labels_is_filled_up_with_rows_that_do_not_count() {
    let tokens = Tensor::from_vec([3, 2], vec![5_i64, 6, 7, 8, 9, 10]).unwrap();
    let data = |target: Vec<i64>| TrainingData {
        inputs: [("tokens".to_owned(), tokens.clone())].into(),
        target_name: "labels".to_owned(),
        target: Tensor::from_vec([3, 2], target).unwrap(),
    };
    let held_out = HeldOutData {
        examples: data(vec![-100, 1, 2, 3, -100, 4]),
        every_steps: 1,
    };
    let mut settings = settings(2);
    settings.recipe.loss = Loss::CountedCrossEntropy;
    let training = data(vec![1; 6]);
    let cut = HeldOut::prepare(&held_out, &training, &settings).unwrap();
    assert_eq!((cut.batch_count(), cut.examples, cut.left_out), (2, 3, 0));
    let last = cut.batch_inputs(1);
    assert_eq!(last["tokens"].to_vec::<i64>().unwrap(), [9, 10, 9, 10]);
    assert_eq!(last["labels"].to_vec::<i64>().unwrap(), [-100, 4, -1, -1]);
    // Three labels count in the first batch and one in the second.
    assert_eq!(cut.combine_losses(&[1.0, 5.0]), 2.0);
}

#[test]
fn an_abandoned_evaluation_sends_no_more_batches_and_has_no_loss() {
    let some = |count| data(&[count, 1, 8, 8], vec![1; count]);
    let training = prepare_with(some(4), settings(2), Some(some(6))).unwrap();
    let evaluation = RunRequest::Evaluation { position: 0 };
    let loss = Tensor::from_vec([1], vec![0.5_f32]).unwrap();
    let outputs = BTreeMap::from([(step_graph::LOSS.to_owned(), loss)]);
    let begin = || {
        let mut sent = SentRequests::default();
        let requests = to_requests(&training, evaluation);
        assert_eq!(requests.len(), 3);
        sent.begin(requests, evaluation);
        sent
    };
    // The batch under way is answered first.
    let mut sent = begin();
    assert_eq!(sent.abandon_evaluation(), None);
    assert!(sent.take_waiting().is_none());
    let (answer, _) = sent.take_answer(&training, &outputs).unwrap();
    assert_eq!(answer, StepAnswer::Abandoned);
    // All that were sent are answered.
    let mut sent = begin();
    assert!(sent.take_answer(&training, &outputs).is_none());
    assert_eq!(sent.abandon_evaluation(), Some(StepAnswer::Abandoned));
    assert!(sent.take_waiting().is_none());
    // All are sent, so it is not abandoned.
    let mut sent = begin();
    while sent.take_waiting().is_some() {}
    assert_eq!(sent.abandon_evaluation(), None);
    let mut answers = (0..3).map(|_| sent.take_answer(&training, &outputs));
    let last = answers.by_ref().last().flatten().unwrap();
    assert!(matches!(last.0, StepAnswer::Done { .. }));
}
