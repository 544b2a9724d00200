//! Prepares the training of an adapter: examples are lines of texts or conversations, the language
//! model's weights stay, and the result is an adapter in the form of PEFT.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use serde_json::{Value, json};
use souk_llm::adapter::{self, Adapter, AdapterError, AdapterSettings};
use souk_llm::decoder::{BatchSize, LENGTH_MAX, TOKENS};
use souk_llm::model::{LanguageModel, ModelError};
use souk_llm::training::{ExampleError, ExampleReader, ExampleRows};
use souk_node::buyer::training::{Training, TrainingData};
use souk_node::memory::{ContentId, Tensor};
use souk_node::scheduler::gradient::{Loss, Recipe, Selection};
use souk_texts::open_model;

use super::failures::from_training;
use super::{SettingDefaults, read_optimizer, read_settings};
use crate::args::TrainArgs;
use crate::failure::{Failure, Kind};
use crate::files;
use crate::show::{format_count, to_u64};

/// The name of the labels among the inputs of a step.
const LABELS: &str = "labels";

/// The largest number of examples in a step, if the user states none.
const BATCH_MAX: usize = 8;

const RANK: usize = 16;
const LEARNING_RATE: f64 = 2e-4;

/// An adapter before training, with facts on its model and its examples.
pub struct AdapterSubject {
    adapter: Adapter,
    settings: AdapterSettings,
    /// The model, as the user named it.
    base: String,
    weights: ContentId,
    data: ContentId,
    rows: ExampleRows,
}

/// Reads the model and its examples, and checks the run.
pub(super) fn prepare_run(
    args: &TrainArgs,
    data_path: &Path,
    unix_seconds: u64,
) -> Result<(AdapterSubject, Training), Failure> {
    let (model, _) = open_model(&args.model, None)?;
    let settings = adapter_settings(args);
    let adapter = model.create_adapter(&settings).map_err(from_model)?;
    let lines = files::read(data_path)?;
    let rows = read_rows(args, &model, (data_path, &lines), unix_seconds)?;
    let data = TrainingData {
        inputs: BTreeMap::from([(TOKENS.to_owned(), rows.tokens.clone())]),
        target_name: LABELS.to_owned(),
        target: rows.labels.clone(),
    };
    let recipe = Recipe {
        loss: Loss::CountedCrossEntropy,
        optimizer: read_optimizer(args)?,
        output: None,
        selection: Selection::Only(adapter::PREFIX.to_owned()),
    };
    let defaults = SettingDefaults {
        steps: None,
        batch: rows.tokens.dims()[0].min(BATCH_MAX),
        learning_rate: LEARNING_RATE,
    };
    let run_settings = read_settings(args, &data, recipe, &defaults);
    // The graph grows with the batch.
    let examples = rows.tokens.dims()[0];
    run_settings.check_bounds(examples).map_err(from_training)?;
    let size = BatchSize {
        rows: run_settings.batch,
        length: rows.tokens.dims()[1],
    };
    let graph = model
        .to_training_model(&adapter, size)
        .map_err(from_model)?;
    let training = Training::prepare(graph, data, run_settings).map_err(from_training)?;
    let subject = AdapterSubject {
        adapter,
        settings,
        base: args.model.display().to_string(),
        weights: model.weights_id().map_err(from_model)?,
        data: ContentId::for_content(&lines),
        rows,
    };
    Ok((subject, training))
}

fn adapter_settings(args: &TrainArgs) -> AdapterSettings {
    let lora = &args.adapter;
    let rank = lora.rank.unwrap_or(RANK);
    let targets = match lora.targets.is_empty() {
        true => adapter::TARGETS.map(str::to_owned).to_vec(),
        false => lora.targets.clone(),
    };
    AdapterSettings {
        rank,
        alpha: lora.alpha.unwrap_or(2.0 * rank as f64),
        targets,
        seed: args.seed,
    }
}

/// Reads the examples.
fn read_rows(
    args: &TrainArgs,
    model: &LanguageModel,
    (path, lines): (&Path, &[u8]),
    unix_seconds: u64,
) -> Result<ExampleRows, Failure> {
    let named = |cause: &dyn std::fmt::Display, hint: &str| {
        Failure::new(Kind::Input, format!("{}: {cause}", path.display()), hint)
    };
    let form = "write a line such as {\"prompt\": \"…\", \"completion\": \"…\"} for each example";
    let lines = std::str::from_utf8(lines).map_err(|error| named(&error, form))?;
    let reader = ExampleReader {
        card: &model.card,
        tokenizer: &model.tokenizer,
        tokens_max: choose_length(args, model)?,
        now: unix_seconds,
    };
    let rows = reader.read_lines(lines);
    let rows = rows.and_then(|examples| ExampleRows::from_examples(&examples));
    rows.map_err(|error| {
        let hint = match &error {
            ExampleError::NoTemplate { .. } => "give prompt and completion instead",
            ExampleError::Long { .. } => "divide the example, or give --length",
            ExampleError::NoAnswer { .. } => "add a completion or an assistant's message",
            ExampleError::Vocabulary { .. } => "leave the text out that has this token",
            _ => form,
        };
        named(&error, hint)
    })
}

/// Returns the most tokens that an example can have.
fn choose_length(args: &TrainArgs, model: &LanguageModel) -> Result<usize, Failure> {
    let length_max = model.positions().min(LENGTH_MAX);
    let length = args.adapter.length.unwrap_or(length_max);
    if length > length_max {
        let cause = format!("--length {length} is more than {length_max}");
        let hint = "give as many as the model has positions, and at most 4096";
        return Err(Failure::new(Kind::Input, cause, hint));
    }
    Ok(length)
}

fn from_model(error: ModelError) -> Failure {
    let hint = match &error {
        ModelError::Adapter(AdapterError::Rank(_)) => "give for example --rank 16",
        ModelError::Adapter(AdapterError::Alpha(_)) => "give for example --alpha 32",
        ModelError::Adapter(_) => "give for example --targets q_proj,v_proj",
        _ => "docs/training.md lists the models that can be trained",
    };
    Failure::new(Kind::Input, error, hint)
}

impl AdapterSubject {
    /// Returns the files of the adapter with these numbers, by name.
    pub fn encode_result(
        &self,
        tensors: BTreeMap<String, Tensor>,
    ) -> Result<BTreeMap<&'static str, Bytes>, Failure> {
        let tuned = self.adapter.with_tensors(tensors);
        let files = tuned.to_files(&self.base);
        files.map_err(|error| Failure::new(Kind::Unexpected, error, ""))
    }

    /// Returns facts on the model, the adapter and the examples for the report.
    pub fn describe_facts(&self, path: &Path) -> Value {
        let AdapterSettings {
            rank,
            alpha,
            targets,
            seed,
        } = &self.settings;
        let [examples, length] = self.row_sizes();
        json!({
            "model": { "file": path, "weights_blake3": self.weights.to_string() },
            "adapter": { "rank": rank, "alpha": alpha, "targets": targets, "seed": seed },
            "examples": {
                "blake3": self.data.to_string(), "count": examples, "length": length,
                "tokens": self.rows.token_count, "answer_tokens": self.rows.answer_count,
            },
        })
    }

    /// Describes the adapter and the examples in a line.
    pub fn describe_line(&self) -> String {
        let [examples, length] = self.row_sizes();
        format!(
            "  an adapter of rank {} beside {} of each layer; {} with {}, {} of them answers, in \
             rows of {length}",
            self.settings.rank,
            self.settings.targets.join(", "),
            format_count(to_u64(examples), "example"),
            format_count(self.rows.token_count, "token"),
            self.rows.answer_count,
        )
    }

    /// Returns the mean number of tokens of an example.
    pub fn tokens_per_example(&self) -> f64 {
        let [examples, _] = self.row_sizes();
        self.rows.token_count as f64 / examples as f64
    }

    fn row_sizes(&self) -> [usize; 2] {
        let dims = self.rows.tokens.dims();
        [dims[0], dims[1]]
    }
}
