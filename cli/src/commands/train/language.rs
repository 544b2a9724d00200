//! Prepares the training of a language model: examples are lines of texts or conversations. Either
//! the weights stay, and the result is an adapter in the form of PEFT; or they change, and the
//! result is a folder like that of the model.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use serde_json::{Value, json};
use souk_llm::adapter::{self, Adapter, AdapterError, AdapterSettings};
use souk_llm::decoder::{BatchSize, LENGTH_MAX, TOKENS};
use souk_llm::model::{LanguageModel, ModelError, ModelFolder};
use souk_llm::training::{Example, ExampleError, ExampleReader, ExampleRows};
use souk_node::buyer::training::{Training, TrainingData};
use souk_node::memory::{ContentId, Tensor};
use souk_node::scheduler::gradient::{Loss, Recipe, Selection};
use souk_texts::{open_model, open_model_folder};

use super::failures::from_training;
use super::{SettingDefaults, read_optimizer, read_settings, with_period};
use crate::args::TrainArgs;
use crate::failure::{Failure, Kind, Outcome};
use crate::files;
use crate::show::{format_count, to_u64};

/// The file with the report of a run, in the folder of the result.
pub const REPORT: &str = "train.json";

/// The name of the labels among the inputs of a step.
const LABELS: &str = "labels";

/// The largest number of examples in a step, if the user states none.
const BATCH_MAX: usize = 8;

const RANK: usize = 16;

const LENGTH_HINT: &str = "divide the example, or give --length";

const EXAMPLE_HINT: &str =
    "write a line such as {\"prompt\": \"…\", \"completion\": \"…\"} for each example";

/// The learning rates of an adapter and of whole weights, if the user states none.
const LEARNING_RATE: f64 = 2e-4;
const LEARNING_RATE_OF_WEIGHTS: f64 = 2e-5;

/// A language model or an adapter before training, with facts on the model and its examples.
pub struct LanguageSubject {
    trained: TrainingTarget,
    /// The model, as the user named it.
    base: String,
    weights: ContentId,
    data: ContentId,
    rows: ExampleRows,
    held_out: Option<HeldOutFile>,
}

/// The part of a language model that is trained.
enum TrainingTarget {
    Adapter {
        adapter: Adapter,
        settings: AdapterSettings,
    },
    /// The weights, in the folder that they come from.
    Weights(ModelFolder),
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
) -> Result<(LanguageSubject, Training), Failure> {
    let (mut model, _) = open_model(&args.model, None)?;
    model.order_queries();
    let trained = TrainingTarget::from_args(args, &model)?;
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
        selection: trained.select_parameters(args, &model)?,
        gradient_norm_max: args.clip,
        has_evaluations: false,
    };
    let defaults = SettingDefaults {
        steps: None,
        batch: rows.tokens.dims()[0].min(BATCH_MAX),
        learning_rate: match args.full {
            true => LEARNING_RATE_OF_WEIGHTS,
            false => LEARNING_RATE,
        },
    };
    let run_settings = read_settings(args, &data, recipe, &defaults);
    // The graph grows with the batch.
    let examples = rows.tokens.dims()[0];
    run_settings.check_bounds(examples).map_err(from_training)?;
    let size = BatchSize {
        rows: run_settings.batch,
        length: rows.tokens.dims()[1],
    };
    let graph = model.to_training_model(trained.adapter(), size);
    let graph = graph.map_err(from_model)?;
    let evaluated = held_out.as_ref().map(|it| to_data(&it.rows));
    let evaluated = evaluated.map(|it| with_period(args, &run_settings, &data, it));
    let training = Training::prepare(graph, data, run_settings, evaluated.as_ref());
    let training = training.map_err(from_training)?;
    let subject = LanguageSubject {
        trained,
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

impl TrainingTarget {
    fn from_args(args: &TrainArgs, model: &LanguageModel) -> Result<TrainingTarget, Failure> {
        if args.full {
            return Ok(TrainingTarget::Weights(open_model_folder(&args.model)?));
        }
        if !args.freeze.is_empty() {
            let cause = "--freeze is for all weights, and only an adapter is trained";
            return Err(Failure::new(
                Kind::Usage,
                cause,
                "add --full, or use --targets",
            ));
        }
        let settings = adapter_settings(args);
        let adapter = model.create_adapter(&settings).map_err(from_model)?;
        Ok(TrainingTarget::Adapter { adapter, settings })
    }

    /// Returns the adapter that is trained, if it is one.
    fn adapter(&self) -> Option<&Adapter> {
        match self {
            TrainingTarget::Adapter { adapter, .. } => Some(adapter),
            TrainingTarget::Weights(_) => None,
        }
    }

    /// Returns the initialisers of the training model that are trained.
    fn select_parameters(
        &self,
        args: &TrainArgs,
        model: &LanguageModel,
    ) -> Result<Selection, Failure> {
        if self.adapter().is_some() {
            return Ok(Selection::Only(vec![adapter::PREFIX.to_owned()]));
        }
        let mut names = model.trainable_weights().map_err(from_model)?;
        for prefix in &args.freeze {
            let is_frozen = |name: &String| name.starts_with(prefix.as_str());
            if !names.iter().any(is_frozen) {
                let cause = format!("--freeze {prefix} names no other weight of the model");
                let hint = "give for example --freeze model.embed_tokens";
                return Err(Failure::new(Kind::Input, cause, hint));
            }
            names.retain(|name| !is_frozen(name));
        }
        Ok(Selection::Only(names))
    }
}

impl LanguageSubject {
    /// Checks that the files of the result can be written to a folder, and that no other model is
    /// there.
    pub fn check_out(&self, out: &Path) -> Outcome {
        let hint = "name a new folder, such as -o tuned/";
        let refused = |cause| Err(Failure::new(Kind::Usage, cause, hint));
        // An earlier result of this kind can be replaced.
        let is_result = self.trained.adapter().is_none() && out.join(REPORT).is_file();
        if out.join("config.json").exists() && !is_result {
            return refused(format!("{} is the folder of a model", out.display()));
        }
        let names = [adapter::CONFIG, adapter::WEIGHTS, REPORT];
        let mut paths = names.iter().map(|name| out.join(name));
        if let Some(path) = paths.find(|path| path.is_dir()) {
            return refused(format!("{} is a folder", path.display()));
        }
        match &self.trained {
            TrainingTarget::Weights(folder) => match folder.check_target(out) {
                Ok(()) => Ok(()),
                Err(error) => refused(error.to_string()),
            },
            TrainingTarget::Adapter { .. } => Ok(()),
        }
    }

    /// Returns the files of the result with these numbers, by name; the last one holds them.
    pub fn encode_result(
        &self,
        tensors: BTreeMap<String, Tensor>,
    ) -> Result<Vec<(String, Bytes)>, Failure> {
        match &self.trained {
            TrainingTarget::Adapter { adapter, .. } => {
                let files = adapter.with_tensors(tensors).to_files(&self.base);
                let files = files.map_err(|error| Failure::new(Kind::Unexpected, error, ""))?;
                let files = files.into_iter();
                Ok(files
                    .map(|(name, bytes)| (name.to_owned(), bytes))
                    .collect())
            }
            TrainingTarget::Weights(folder) => {
                let files = folder.with_weights(&tensors).and_then(|it| it.encode());
                files.map_err(|error| Failure::new(Kind::Unexpected, error, ""))
            }
        }
    }

    /// Returns facts on the model, the adapter and the examples for the report.
    pub fn describe_facts(&self, path: &Path) -> Value {
        let adapter = match &self.trained {
            TrainingTarget::Adapter { settings, .. } => json!({
                "rank": settings.rank, "alpha": settings.alpha,
                "targets": settings.targets, "seed": settings.seed,
            }),
            TrainingTarget::Weights(_) => Value::Null,
        };
        let [examples, length] = self.row_sizes();
        json!({
            "model": { "file": path, "weights_blake3": self.weights.to_string() },
            "adapter": adapter,
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

    /// Describes in a line what is trained, and the examples.
    pub fn describe_line(&self) -> String {
        let [examples, length] = self.row_sizes();
        let trained = match &self.trained {
            TrainingTarget::Adapter { settings, .. } => {
                let targets = settings.targets.join(", ");
                format!(
                    "an adapter of rank {} for {targets} of each layer",
                    settings.rank
                )
            }
            TrainingTarget::Weights(_) => "the weights of the model".to_owned(),
        };
        format!(
            "  {trained}; {} with {}, {} of them answers, in rows of {length}",
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
