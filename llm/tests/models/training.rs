//! Tests training: losses and adapters must match those of PyTorch and PEFT, and the gradients of
//! all weights must match numerical differences of the loss.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::Deserialize;
use serde_json::Value;
use souk_llm::adapter::{self, Adapter, AdapterSettings};
use souk_llm::decoder::{BatchSize, LOGITS, TOKENS};
use souk_llm::model::{LanguageModel, ModelError, ModelFolder};
use souk_memory::{Bf16, DType, Tensor, safetensors};
use souk_onnx::subgraph::Subgraph;
use souk_scheduler::gradient::adamw::AdamW;
use souk_scheduler::gradient::sgd::Sgd;
use souk_scheduler::gradient::step_graph::LOSS;
use souk_scheduler::gradient::{Loss, Optimizer, Recipe, Selection, StepGraph, build_step_graph};
use souk_scheduler::graph::InputType;
use souk_vocabulary::processor::Processor;

use super::common;
use super::decoders::{ROOM, near_within};
use super::gguf_files::{self, Kind};

/// Of the loss: what 32-bit floats may differ by after twenty steps.
const LOSS_TOLERANCE: f64 = 1e-5;
/// Of the largest logit.
const LOGIT_TOLERANCE: f32 = 1e-4;
const FAMILIES: [&str; 4] = ["llama", "mistral-window", "qwen2", "qwen3"];

/// What `reference/training.py` found.
#[derive(Deserialize)]
struct Case {
    config: Value,
    rank: usize,
    alpha: f64,
    targets: Vec<String>,
    batch: usize,
    learning_rate: f64,
    tokens: Vec<Vec<i64>>,
    labels: Vec<Vec<i64>>,
    losses: Vec<f64>,
    prompt: Vec<u32>,
    logits: Vec<f32>,
}

impl Case {
    fn read(name: &str) -> Case {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference");
        let path = format!("{folder}/training-{name}.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    fn model(&self) -> LanguageModel {
        let folder = tempfile::tempdir().unwrap();
        common::write_folder(folder.path(), &self.config, &common::weights(&self.config));
        LanguageModel::open(folder.path()).unwrap()
    }

    fn size(&self) -> BatchSize {
        BatchSize {
            rows: self.batch,
            length: self.tokens[0].len(),
        }
    }

    fn settings(&self) -> AdapterSettings {
        AdapterSettings {
            rank: self.rank,
            alpha: self.alpha,
            targets: self.targets.clone(),
            seed: 0,
        }
    }

    /// The adapter with A of a hash, and B too or zero.
    fn adapter(&self, model: &LanguageModel, has_up: bool) -> Adapter {
        let adapter = model.create_adapter(&self.settings()).unwrap();
        let number = |(name, tensor): (&String, &Tensor)| {
            if name.contains("lora_B") && !has_up {
                return (name.clone(), tensor.clone());
            }
            let values = common::weight(name, tensor.shape().element_count());
            let tensor = Tensor::from_vec(tensor.dims(), values).unwrap();
            (name.clone(), tensor)
        };
        let tensors = adapter.tensors().iter().map(number);
        adapter.with_tensors(tensors.collect())
    }

    fn batch_rows(all: &[Vec<i64>], rows: RangeInclusive<usize>) -> Tensor {
        let rows: Vec<&Vec<i64>> = rows.map(|row| &all[row % all.len()]).collect();
        let dims = [rows.len(), rows[0].len()];
        let values: Vec<i64> = rows.into_iter().flatten().copied().collect();
        Tensor::from_vec(dims, values).unwrap()
    }
}

/// The type of the tokens of a batch, and of their labels.
fn to_input_type(size: BatchSize) -> InputType {
    InputType {
        dtype: DType::I64,
        dims: vec![size.rows, size.length],
    }
}

/// Rounds a weight to 16 bits.
fn narrow(weights: &mut BTreeMap<String, Tensor>, name: &str) {
    let numbers = weights[name].to_vec::<f32>().unwrap();
    let numbers: Vec<Bf16> = numbers.into_iter().map(Bf16::from_f32).collect();
    let narrow = Tensor::from_vec(weights[name].dims(), numbers).unwrap();
    weights.insert(name.to_owned(), narrow);
}

#[test]
fn twenty_steps_have_the_losses_of_pytorch_and_peft() {
    for name in FAMILIES {
        let case = Case::read(name);
        let (model, size) = (case.model(), case.size());
        let adapter = case.adapter(&model, false);
        let graph = model.to_training_model(Some(&adapter), size).unwrap();
        let of_batch = to_input_type(size);
        let recipe = Recipe {
            loss: Loss::CountedCrossEntropy,
            optimizer: Optimizer::AdamW(AdamW::default()),
            output: None,
            selection: Selection::Only(vec![adapter::PREFIX.to_owned()]),
            gradient_norm_max: None,
            has_evaluations: false,
        };
        let batch = BTreeMap::from([(TOKENS.to_owned(), of_batch.clone())]);
        let step = build_step_graph(graph, &batch, ("labels", &of_batch), &recipe).unwrap();
        assert_eq!(step.parameters.count(), adapter.tensors().len());
        assert_eq!(step.output, LOGITS);
        let subgraph = Subgraph {
            model: step.model.clone(),
            weights: BTreeMap::new(),
        };
        let program = common::cpu().compile(&subgraph).unwrap();
        let mut states = step.states.clone();
        for (at, expected) in case.losses.iter().enumerate() {
            let rows = at * case.batch..=at * case.batch + case.batch - 1;
            let mut given = states.clone();
            let tokens = Case::batch_rows(&case.tokens, rows.clone());
            given.insert(TOKENS.to_owned(), tokens);
            given.insert("labels".to_owned(), Case::batch_rows(&case.labels, rows));
            let schedule = step.schedule(at as u64, case.learning_rate);
            given.insert(StepGraph::schedule_input(), schedule);
            let outputs = program.run(&given).unwrap().outputs;
            let found = f64::from(outputs[LOSS].to_vec::<f32>().unwrap()[0]);
            assert!(
                (found - expected).abs() <= LOSS_TOLERANCE * expected,
                "{name}, step {at}: {found}, PyTorch {expected}"
            );
            states = step.next_states(&outputs).unwrap();
        }
        // The trained numbers become an adapter of the same form.
        let vector = &states[&StepGraph::parameters_input()];
        let tuned = adapter.with_tensors(step.parameters.split_vector(vector));
        assert_ne!(tuned, adapter);
    }
}

/// How far a weight is moved along a direction of length 1, to see how the loss changes.
const MOVE: f64 = 0.02;

#[test]
fn the_gradient_of_each_weight_is_the_slope_of_the_loss() {
    for name in FAMILIES {
        let case = Case::read(name);
        let (model, size) = (case.model(), case.size());
        let of_batch = to_input_type(size);
        let weights = model.trainable_weights().unwrap();
        let recipe = Recipe {
            loss: Loss::CountedCrossEntropy,
            optimizer: Optimizer::Sgd(Sgd {
                momentum: 0.0,
                weight_decay: 0.0,
            }),
            output: None,
            selection: Selection::Only(weights.clone()),
            gradient_norm_max: None,
            has_evaluations: false,
        };
        let graph = model.to_training_model(None, size).unwrap();
        let batch = BTreeMap::from([(TOKENS.to_owned(), of_batch.clone())]);
        let step = build_step_graph(graph, &batch, ("labels", &of_batch), &recipe).unwrap();
        let trained: Vec<String> = step.parameters.iter().map(|it| it.name.clone()).collect();
        assert_eq!(trained.len(), weights.len(), "{name}: {trained:?}");
        let subgraph = Subgraph {
            model: step.model.clone(),
            weights: BTreeMap::new(),
        };
        let program = common::cpu().compile(&subgraph).unwrap();
        let vector = |values: Vec<f32>| Tensor::from_vec([values.len()], values).unwrap();
        let run = |parameters: &[f32]| {
            let rows = 0..=case.batch - 1;
            let given = BTreeMap::from([
                (
                    TOKENS.to_owned(),
                    Case::batch_rows(&case.tokens, rows.clone()),
                ),
                ("labels".to_owned(), Case::batch_rows(&case.labels, rows)),
                (StepGraph::schedule_input(), step.schedule(0, 1.0)),
                (StepGraph::parameters_input(), vector(parameters.to_vec())),
            ]);
            let outputs = program.run(&given).unwrap().outputs;
            let loss = f64::from(outputs[LOSS].to_vec::<f32>().unwrap()[0]);
            let next = step.next_states(&outputs).unwrap();
            let next = next[&StepGraph::parameters_input()].to_vec::<f32>();
            (loss, next.unwrap())
        };
        let first = step.states[&StepGraph::parameters_input()].to_vec::<f32>();
        let first = first.unwrap();
        let (_, next) = run(&first);
        for parameter in step.parameters.iter() {
            let places = parameter.start..parameter.start + parameter.elements();
            // Stochastic gradient descent with the rate 1 moves by the gradient.
            let gradient = places.clone().map(|at| f64::from(first[at] - next[at]));
            let norm = gradient.clone().map(|it| it * it).sum::<f64>().sqrt();
            let moved = |sign: f64| {
                let mut values = first.clone();
                for (at, slope) in places.clone().zip(gradient.clone()) {
                    values[at] += (sign * MOVE * slope / norm) as f32;
                }
                run(&values).0
            };
            let slope = (moved(1.0) - moved(-1.0)) / (2.0 * MOVE);
            assert!(
                (slope - norm).abs() <= 0.02 * norm,
                "{name}, {}: the gradient is {norm} long, the slope {slope}",
                parameter.name
            );
        }
    }
}

#[test]
fn trained_weights_replace_those_of_a_folder_in_their_types() {
    let case = Case::read("qwen2");
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut weights = common::weights(&case.config);
    let name = "model.layers.0.mlp.up_proj.weight";
    narrow(&mut weights, name);
    common::write_folder(from.path(), &case.config, &weights);
    std::fs::write(from.path().join("train.json"), "{}").unwrap();
    let folder = ModelFolder::open(from.path()).unwrap();
    let values = vec![0.5_f32; weights[name].shape().element_count()];
    let trained = Tensor::from_vec(weights[name].dims(), values).unwrap();
    let trained = BTreeMap::from([(name.to_owned(), trained)]);
    folder
        .with_weights(&trained)
        .unwrap()
        .write(to.path())
        .unwrap();
    let written = std::fs::read(to.path().join("model.safetensors")).unwrap();
    let written = safetensors::read(&written.into()).unwrap();
    assert_eq!(written[name].dtype(), DType::Bf16);
    assert!(written[name].to_f64s().unwrap().iter().all(|it| *it == 0.5));
    let embedding = "model.embed_tokens.weight";
    assert_eq!(written[embedding], weights[embedding]);
    LanguageModel::open(to.path()).unwrap();
    // Another model's template, and an adapter, would change what this one says.
    for other in ["chat_template.jinja", "adapter_config.json"] {
        let path = to.path().join(other);
        std::fs::write(&path, "{}").unwrap();
        let refused = folder.write(to.path()).unwrap_err();
        assert!(matches!(refused, ModelError::OtherModel(_)), "{refused}");
        std::fs::remove_file(path).unwrap();
    }
    // The report of an earlier training is not that of this one.
    assert!(!to.path().join("train.json").exists());
    let short = Tensor::from_vec([1], vec![0.5_f32]).unwrap();
    let refused = folder.with_weights(&BTreeMap::from([(name.to_owned(), short)]));
    assert!(matches!(refused.err(), Some(ModelError::Weight(_))));
}

#[test]
fn an_adapter_in_its_files_gives_the_logits_of_peft() {
    for name in FAMILIES {
        let case = Case::read(name);
        let mut model = case.model();
        let adapter = case.adapter(&model, true);
        let folder = tempfile::tempdir().unwrap();
        for (file, bytes) in adapter.to_files("base").unwrap() {
            std::fs::write(folder.path().join(file), bytes).unwrap();
        }
        let read = Adapter::read(folder.path()).unwrap();
        assert_eq!(read, adapter);
        model.merge_adapter(&read).unwrap();
        let decoder = common::drawing(model.into_decoder(ROOM).unwrap());
        let program = common::cpu().compile(&decoder.subgraph).unwrap();
        let mut sequence = common::sequence(&*program, &decoder, ROOM);
        let found = sequence.push(&case.prompt).unwrap();
        near_within(LOGIT_TOLERANCE, &found, &case.logits, name);
    }
}

#[test]
fn a_gguf_file_is_trained_and_adapted_as_its_folder_is() {
    let case = Case::read("llama");
    let folder = case.model();
    let adapter = case.adapter(&folder, true);
    let [file, _] = gguf_files::files(&case.config, Kind::F32);
    let mut model = gguf_files::opened(&file).unwrap();
    // Before, its queries are in another order.
    assert!(model.create_adapter(&case.settings()).is_err());
    assert_ne!(model.weights_id().unwrap(), folder.weights_id().unwrap());
    model.order_queries();
    assert_eq!(model.weights_id().unwrap(), folder.weights_id().unwrap());
    assert_eq!(case.adapter(&model, true), adapter);
    let graphs = [&model, &folder].map(|it| it.to_training_model(Some(&adapter), case.size()));
    let [one, other] = graphs.map(Result::unwrap);
    assert!(one == other, "the same graph and weights");
    let mut model = gguf_files::opened(&file).unwrap();
    model.merge_adapter(&adapter).unwrap();
    let decoder = common::drawing(model.into_decoder(ROOM).unwrap());
    let program = common::cpu().compile(&decoder.subgraph).unwrap();
    let mut sequence = common::sequence(&*program, &decoder, ROOM);
    let found = sequence.push(&case.prompt).unwrap();
    near_within(LOGIT_TOLERANCE, &found, &case.logits, "GGUF");

    let [file, _] = gguf_files::files(&case.config, Kind::Q8);
    let mut blocks = gguf_files::opened(&file).unwrap();
    blocks.order_queries();
    let refused = blocks.create_adapter(&case.settings()).err().unwrap();
    assert!(
        refused.to_string().contains("blocks of few bits"),
        "{refused}"
    );
    let refused = blocks.merge_adapter(&adapter).unwrap_err();
    assert!(
        refused.to_string().contains("souk cannot order"),
        "{refused}"
    );
}

#[test]
fn a_new_adapter_changes_nothing_and_depends_on_its_seed() {
    let case = Case::read("llama");
    let model = case.model();
    let of_seed = |seed| {
        let settings = AdapterSettings {
            seed,
            ..case.settings()
        };
        model.create_adapter(&settings).unwrap()
    };
    let adapter = of_seed(1);
    assert_eq!(adapter, of_seed(1));
    assert_ne!(adapter, of_seed(2));
    for (name, tensor) in adapter.tensors() {
        let values = tensor.to_vec::<f32>().unwrap();
        let bound = match name.contains("lora_A") {
            true => 1.0 / (tensor.dims()[1] as f32).sqrt(),
            false => 0.0,
        };
        let largest = values.iter().fold(0.0_f32, |most, it| most.max(it.abs()));
        assert!(
            largest <= bound && largest >= 0.9 * bound,
            "{name}: {largest} {bound}"
        );
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        assert!(mean.abs() <= 0.2 * bound, "{name}: {mean}");
    }
}

#[test]
fn a_merged_folder_is_the_model_with_its_adapter() {
    let case = Case::read("qwen2");
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut weights = common::weights(&case.config);
    // A weight in 16 bits stays so.
    let name = "model.layers.0.mlp.up_proj.weight";
    narrow(&mut weights, name);
    common::write_folder(from.path(), &case.config, &weights);
    let adapter = case.adapter(&LanguageModel::open(from.path()).unwrap(), true);
    let mut folder = ModelFolder::open(from.path()).unwrap();
    folder.merge_adapter(&adapter).unwrap();
    folder.write(to.path()).unwrap();
    let merged = std::fs::read(to.path().join("model.safetensors")).unwrap();
    let merged = safetensors::read(&merged.into()).unwrap();
    assert_eq!(merged[name].dtype(), DType::Bf16);
    assert_ne!(merged[name], weights[name]);
    let embedding = "model.embed_tokens.weight";
    assert_eq!(merged[embedding], weights[embedding]);
    let mut adapted = LanguageModel::open(from.path()).unwrap();
    adapted.merge_adapter(&adapter).unwrap();
    let merged = LanguageModel::open(to.path()).unwrap();
    let [one, other] = [adapted, merged].map(|it| it.into_decoder(ROOM).unwrap().subgraph);
    assert_eq!(one.weights, other.weights);
    let refused = folder.write(from.path()).unwrap_err();
    assert!(matches!(refused, ModelError::SameFolder(_)), "{refused}");
    // With an index, the folder is another model's, whose weights would be read.
    std::fs::write(to.path().join("model.safetensors.index.json"), "{}").unwrap();
    let refused = folder.write(to.path()).unwrap_err();
    assert!(matches!(refused, ModelError::OtherModel(_)), "{refused}");
}

#[test]
fn what_cannot_be_adapted_is_refused_with_its_reason() {
    let case = Case::read("llama");
    let mut model = case.model();
    let refused = |settings: AdapterSettings| {
        let error = case.model().create_adapter(&settings).err().unwrap();
        error.to_string()
    };
    let settings = case.settings();
    let rank = AdapterSettings {
        rank: 0,
        ..settings.clone()
    };
    assert_eq!(refused(rank), "the rank 0 is not between 1 and 16384");
    let target = AdapterSettings {
        targets: vec!["lm_head".to_owned()],
        ..settings.clone()
    };
    assert!(refused(target).starts_with("the target \"lm_head\" is no matrix of a layer"));
    for (name, why) in [
        ("gemma2", "its family"),
        ("mixtral", "its mixture of experts"),
    ] {
        let model = super::decoders::Case::read(name).model();
        let error = model.create_adapter(&settings).err().unwrap().to_string();
        let expected = format!("souk cannot train this model because of {why}");
        assert!(error.starts_with(&expected), "{error}");
    }
    // The adapter of a model with other sizes.
    let other = Case::read("qwen3");
    let adapter = other.adapter(&other.model(), true);
    let error = model.merge_adapter(&adapter).unwrap_err().to_string();
    assert!(error.ends_with("has other sizes"), "{error}");
    // An adapter without numbers.
    let empty = adapter.tensors().iter().map(|(name, tensor)| {
        let dims = match name.contains("lora_A") {
            true => [0, tensor.dims()[1]],
            false => [tensor.dims()[0], 0],
        };
        (
            name.clone(),
            Tensor::from_vec(dims, Vec::<f32>::new()).unwrap(),
        )
    });
    let folder = tempfile::tempdir().unwrap();
    let config = adapter.to_files("base").unwrap()[adapter::CONFIG].clone();
    std::fs::write(folder.path().join(adapter::CONFIG), config).unwrap();
    let empty = safetensors::write(&empty.collect()).unwrap();
    std::fs::write(folder.path().join(adapter::WEIGHTS), empty).unwrap();
    let error = Adapter::read(folder.path());
    let error = error.and_then(|it| other.model().merge_adapter(&it));
    assert!(error.unwrap_err().to_string().ends_with("has other sizes"));
}

/// An adapter's error, once a text of its configuration is another.
fn error_of(case: &Case, adapter: &Adapter, text: &str, other: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    for (file, bytes) in adapter.to_files("base").unwrap() {
        let config = String::from_utf8_lossy(&bytes);
        let bytes = match file == adapter::CONFIG {
            true => {
                assert!(config.contains(text), "{config}");
                config.replace(text, other).into_bytes()
            }
            false => bytes.to_vec(),
        };
        std::fs::write(folder.path().join(file), bytes).unwrap();
    }
    let read = Adapter::read(folder.path());
    let merged = read.and_then(|it| case.model().merge_adapter(&it));
    merged.unwrap_err().to_string()
}

#[test]
fn a_configuration_that_changes_the_sum_is_refused_by_its_key() {
    let case = Case::read("qwen3");
    let adapter = case.adapter(&case.model(), true);
    let error = |text, other| error_of(&case, &adapter, text, other);
    assert_eq!(
        error("\"use_dora\": false", "\"use_dora\": true"),
        "adapter_config.json: use_dora = true is not supported"
    );
    // PEFT takes a part out of the base's weights for this one.
    let first = "\"init_lora_weights\": true";
    assert_eq!(
        error(first, "\"init_lora_weights\": \"pissa\""),
        "adapter_config.json: init_lora_weights = \"pissa\" is not supported"
    );
    let rank = case.settings().rank;
    let (told, other) = (format!("\"r\": {rank}"), format!("\"r\": {}", 4 * rank));
    assert!(error(&told, &other).ends_with("has other sizes"));
}

#[test]
fn an_adapter_without_tensors_is_refused() {
    let case = Case::read("llama");
    let adapter = case.adapter(&case.model(), true);
    let folder = tempfile::tempdir().unwrap();
    let config = adapter.to_files("base").unwrap()[adapter::CONFIG].clone();
    std::fs::write(folder.path().join(adapter::CONFIG), config).unwrap();
    let nothing = safetensors::write(&BTreeMap::new()).unwrap();
    std::fs::write(folder.path().join(adapter::WEIGHTS), nothing).unwrap();
    let error = Adapter::read(folder.path()).unwrap_err();
    assert!(matches!(error, adapter::AdapterError::Empty), "{error}");
}
