//! Prepares the training of an adapter: examples are lines of texts or conversations, the language
//! model's weights stay, and the result is an adapter in the form of PEFT.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use serde_json::{Value, json};
use souk_llm::adapter::{self, Adapter, AdapterError, AdapterSettings};
use souk_llm::decoder::{BatchSize, LENGTH_MAX, TOKENS};
use souk_llm::model::{LanguageModel, ModelError};
use souk_llm::training::{Example, ExampleError, ExampleReader, ExampleRows};
use souk_node::buyer::training::{Training, TrainingData};
use souk_node::memory::{ContentId, Tensor};
use souk_node::scheduler::gradient::{Loss, Recipe, Selection};
use souk_texts::open_model;

use super::failures::from_training;
use super::{SettingDefaults, read_optimizer, read_settings, with_period};
use crate::args::TrainArgs;
use crate::failure::{Failure, Kind};
use crate::files;
use crate::show::{format_count, to_u64};

/// The name of the labels among the inputs of a step.
const LABELS: &str = "labels";

/// The largest number of examples in a step, if the user states none.
const BATCH_MAX: usize = 8;

const RANK: usize = 16;

const LENGTH_HINT: &str = "divide the example, or give --length";

const EXAMPLE_HINT: &str =
    "write a line such as {\"prompt\": \"…\", \"completion\": \"…\"} for each example";

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
    held_out: Option<HeldOutFile>,
}

/// A file of held-out examples.
struct HeldOutFile {
    blake3: ContentId,
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
    let limit = (choose_length(args, &model)?, LENGTH_HINT);
    let examples = read_examples(&model, (data_path, &lines), limit, unix_seconds)?;
    let rows = ExampleRows::from_examples(&examples);
    let rows = rows.map_err(|error| from_examples(data_path, &error, LENGTH_HINT))?;
    let held_out = read_held_out(args, &model, &rows, unix_seconds)?;
    let data = to_data(&rows);
    let recipe = Recipe {
        loss: Loss::CountedCrossEntropy,
        optimizer: read_optimizer(args)?,
        output: None,
        selection: Selection::Only(adapter::PREFIX.to_owned()),
        has_evaluations: false,
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
    let evaluated = held_out.as_ref().map(|it| to_data(&it.rows));
    let evaluated = evaluated.map(|it| with_period(args, &run_settings, &data, it));
    let training = Training::prepare(graph, data, run_settings, evaluated.as_ref());
    let training = training.map_err(from_training)?;
    let subject = AdapterSubject {
        adapter,
        settings,
        base: args.model.display().to_string(),
        weights: model.weights_id().map_err(from_model)?,
        data: ContentId::for_content(&lines),
        rows,
        held_out,
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

/// Returns rows of examples as tensors by the names of a step's inputs.
fn to_data(rows: &ExampleRows) -> TrainingData {
    TrainingData {
        inputs: BTreeMap::from([(TOKENS.to_owned(), rows.tokens.clone())]),
        target_name: LABELS.to_owned(),
        target: rows.labels.clone(),
    }
}

/// Reads the examples of a file, of which none is longer than a limit, with the hint for a longer
/// one.
fn read_examples(
    model: &LanguageModel,
    (path, lines): (&Path, &[u8]),
    (tokens_max, long_hint): (usize, &str),
    unix_seconds: u64,
) -> Result<Vec<Example>, Failure> {
    let lines = std::str::from_utf8(lines).map_err(|error| {
        let cause = format!("{}: {error}", path.display());
        Failure::new(Kind::Input, cause, EXAMPLE_HINT)
    })?;
    let reader = ExampleReader {
        card: &model.card,
        tokenizer: &model.tokenizer,
        tokens_max,
        now: unix_seconds,
    };
    let examples = reader.read_lines(lines);
    examples.map_err(|error| from_examples(path, &error, long_hint))
}

/// Reads the held-out examples. They get the rows of the others: longer rows would change the
/// numbers of the training, and its price.
fn read_held_out(
    args: &TrainArgs,
    model: &LanguageModel,
    rows: &ExampleRows,
    unix_seconds: u64,
) -> Result<Option<HeldOutFile>, Failure> {
    let path = match &args.eval[..] {
        [] => return Ok(None),
        [only] => Path::new(only),
        _ => {
            let cause = "--eval is given several times";
            let hint = "give one file with all held-out examples";
            return Err(Failure::new(Kind::Usage, cause, hint));
        }
    };
    let lines = files::read(path)?;
    let length = rows.tokens.dims()[1];
    let long = "no held-out example can be longer than the longest one in the training: divide it, \
                leave it out, or train on it";
    let limit = (length + 1, long);
    let examples = read_examples(model, (path, &lines), limit, unix_seconds)?;
    Ok(Some(HeldOutFile {
        blake3: ContentId::for_content(&lines),
        rows: ExampleRows::with_length(&examples, length),
    }))
}

fn from_examples(path: &Path, error: &ExampleError, long_hint: &str) -> Failure {
    let hint = match error {
        ExampleError::NoTemplate { .. } => "give prompt and completion instead",
        ExampleError::Long { .. } => long_hint,
        ExampleError::NoAnswer { .. } => "add a completion or an assistant's message",
        ExampleError::Vocabulary { .. } => "leave the text out that has this token",
        _ => EXAMPLE_HINT,
    };
    Failure::new(Kind::Input, format!("{}: {error}", path.display()), hint)
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
            "held_out_examples": self.held_out.as_ref().map(|it| json!({
                "blake3": it.blake3.to_string(), "count": it.rows.tokens.dims()[0],
                "tokens": it.rows.token_count, "answer_tokens": it.rows.answer_count,
            })),
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
