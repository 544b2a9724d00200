//! Measures how long a training step of an adapter takes on this machine's processor.
//!
//!     cargo run --release -p souk-llm --example train -- MODEL [ROWS [LENGTH [RANK [STEPS [THREADS]]]]]
//!
//! `llm/bench/train_beside_torch.py` measures the same step by PyTorch and PEFT.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

use souk_cpu::Cpu;
use souk_llm::adapter::{self, AdapterSettings};
use souk_llm::decoder::{BatchSize, TOKENS};
use souk_llm::model::LanguageModel;
use souk_memory::{DType, Tensor};
use souk_onnx::subgraph::Subgraph;
use souk_scheduler::gradient::adamw::AdamW;
use souk_scheduler::gradient::step_graph::LOSS;
use souk_scheduler::gradient::{Loss, Optimizer, Recipe, Selection, StepGraph, build_step_graph};
use souk_scheduler::graph::InputType;
use souk_vocabulary::catalogue;
use souk_vocabulary::processor::Processor;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, otherwise: usize| {
        let given = arguments.get(place).and_then(|it| it.parse().ok());
        given.unwrap_or(otherwise)
    };
    let path = arguments.first().expect("a model");
    let model = LanguageModel::open(Path::new(path)).expect("a model is there");
    let (rows, length) = (number(1, 4), number(2, 128));
    let settings = AdapterSettings {
        rank: number(3, 16),
        alpha: 32.0,
        targets: adapter::TARGETS.map(str::to_owned).to_vec(),
        seed: 0,
    };
    let adapter = model.create_adapter(&settings).expect("it can be trained");
    let size = BatchSize { rows, length };
    let graph = model
        .to_training_model(Some(&adapter), size)
        .expect("a graph");
    let of_batch = InputType {
        dtype: DType::I64,
        dims: vec![rows, length],
    };
    let recipe = Recipe {
        loss: Loss::CountedCrossEntropy,
        optimizer: Optimizer::AdamW(AdamW::default()),
        output: None,
        selection: Selection::Only(vec![adapter::PREFIX.to_owned()]),
        gradient_norm_max: None,
        has_evaluations: false,
    };
    let batch = BTreeMap::from([(TOKENS.to_owned(), of_batch.clone())]);
    let began = Instant::now();
    let step = build_step_graph(graph, &batch, ("labels", &of_batch), &recipe);
    let step = step.expect("each operator has a rule");
    let subgraph = Subgraph {
        model: step.model.clone(),
        weights: BTreeMap::new(),
    };
    let threads = NonZeroUsize::new(number(5, 2)).expect("one at least");
    let cpu = Cpu::new(catalogue::all_processors()[0].clone(), threads);
    let program = cpu.compile(&subgraph).expect("it compiles");
    println!("built in {:.2} s", began.elapsed().as_secs_f64());
    let ids = |first: usize| {
        let ids = (first..first + rows * length).map(|at| (at * 7 % model.card.vocabulary) as i64);
        Tensor::from_vec([rows, length], ids.collect::<Vec<i64>>()).expect("as many")
    };
    let mut states = step.states.clone();
    for at in 0..number(4, 5) {
        let mut given = states;
        given.insert(TOKENS.to_owned(), ids(0));
        given.insert("labels".to_owned(), ids(1));
        given.insert(StepGraph::schedule_input(), step.schedule(at as u64, 2e-4));
        let began = Instant::now();
        let outputs = program.run(&given).expect("a step").outputs;
        let seconds = began.elapsed().as_secs_f64();
        let loss = outputs[LOSS].to_vec::<f32>().expect("a loss")[0];
        println!(
            "step {at}: loss {loss:.5}, {:.1} ms, {:.0} tokens per second",
            seconds * 1e3,
            (rows * length) as f64 / seconds
        );
        states = step.next_states(&outputs).expect("the next states");
    }
}
