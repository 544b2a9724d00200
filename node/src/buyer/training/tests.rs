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
        learning_rate: 1e-3,
        order: ExampleOrder::Shuffled(0),
        recipe: Recipe {
            loss: Loss::CrossEntropy,
            optimizer: souk_scheduler::gradient::Optimizer::AdamW(Default::default()),
            output: None,
            selection: souk_scheduler::gradient::Selection::AllBut(Vec::new()),
        },
    }
}

fn prepare(data: TrainingData, settings: TrainingSettings) -> Result<Training, TrainingError> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../testnet/models/digits/digits.onnx"
    );
    Training::prepare(std::fs::read(path).unwrap().into(), data, settings)
}

#[test]
fn a_step_gets_its_rows_of_all_tensors() {
    let mut data = data(&[5, 1, 8, 8], vec![4, 3, 2, 1, 0]);
    let rows: Vec<f32> = (0..5 * 64).map(|it| (it / 64) as f32).collect();
    let images = Tensor::from_vec([5, 1, 8, 8], rows).unwrap();
    data.inputs.insert("images".to_owned(), images);
    let training = prepare(data, settings(2)).unwrap();
    assert_eq!(training.steps_per_pass(), 2);
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
            learning_rate: f64::NAN,
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
