//! Defines [`Subject`], the model that `souk train` trains: a whole ONNX model, or a language model
//! or an adapter of one. Each kind checks and writes its own result files.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde_json::{Value, json};
use souk_node::buyer::training::{Training, run_folder};
use souk_node::memory::{ContentId, Tensor};

#[cfg(feature = "generate")]
use super::language::{LanguageSubject, REPORT};
use super::onnx_model;
use crate::args::TrainArgs;
use crate::failure::{Failure, Kind, Outcome};
use crate::files;

/// The model to train.
pub enum Subject {
    /// The weights of an ONNX model, whose bytes before training these are.
    Model(Bytes),
    /// A language model or an adapter of one.
    #[cfg(feature = "generate")]
    Language(Box<LanguageSubject>),
}

/// A file of a result.
pub struct ResultFile {
    pub path: PathBuf,
    pub bytes: Bytes,
}

impl Subject {
    /// Checks that the result can be written to `out`.
    pub fn prepare_out(&self, out: &Path) -> Outcome {
        match self {
            Self::Model(_) => onnx_model::check_out(out)?,
            #[cfg(feature = "generate")]
            Self::Language(subject) => subject.check_out(out)?,
        }
        files::prepare_folder(&self.folder(out))
    }

    /// Checks that the result replaces no file that the run reads. Otherwise a stopped run would
    /// lose the model with which it began, and could not be resumed.
    pub fn check_sources(&self, out: &Path, args: &TrainArgs) -> Outcome {
        let written = [out.to_owned(), self.report_path(out)];
        match find_same_file(&args.source_paths(), &written) {
            None => Ok(()),
            Some(path) => {
                let path = path.display();
                let cause = format!("the result would replace {path}, which the run reads");
                Err(Failure::new(
                    Kind::Usage,
                    cause,
                    "name another file with -o",
                ))
            }
        }
    }

    /// Returns the folder of the result and its receipts.
    pub fn folder(&self, out: &Path) -> PathBuf {
        match self {
            Self::Model(_) => {
                let parent = out.parent().filter(|it| !it.as_os_str().is_empty());
                parent.unwrap_or(Path::new(".")).to_owned()
            }
            #[cfg(feature = "generate")]
            Self::Language(_) => out.to_owned(),
        }
    }

    /// Returns the folder of the run's journal.
    pub fn run_folder(&self, out: &Path) -> PathBuf {
        match self {
            Self::Model(_) => run_folder(out, false),
            #[cfg(feature = "generate")]
            Self::Language(_) => run_folder(out, true),
        }
    }

    /// Returns the path of the report.
    pub fn report_path(&self, out: &Path) -> PathBuf {
        match self {
            Self::Model(_) => out.with_extension("json"),
            #[cfg(feature = "generate")]
            Self::Language(_) => out.join(REPORT),
        }
    }

    /// Returns the files of the result; the last one holds the trained numbers.
    pub fn encode_result(
        &self,
        training: &Training,
        vector: &Tensor,
        out: &Path,
    ) -> Result<Vec<ResultFile>, Failure> {
        let parameters = &training.step.parameters;
        match self {
            Self::Model(model) => {
                let tuned = parameters.write_to_model(model.clone(), vector);
                let bytes = tuned.map_err(|error| Failure::new(Kind::Unexpected, error, ""))?;
                let path = out.to_owned();
                Ok(vec![ResultFile { path, bytes }])
            }
            #[cfg(feature = "generate")]
            Self::Language(subject) => {
                let files = subject.encode_result(parameters.split_vector(vector))?;
                let file = |(name, bytes)| ResultFile {
                    path: out.join(name),
                    bytes,
                };
                Ok(files.into_iter().map(file).collect())
            }
        }
    }

    /// Returns facts on the model and its data for the report.
    pub fn describe_facts(&self, path: &Path) -> Value {
        match self {
            Self::Model(model) => json!({
                "model": { "file": path, "blake3": ContentId::for_content(model).to_string() },
            }),
            #[cfg(feature = "generate")]
            Self::Language(subject) => subject.describe_facts(path),
        }
    }

    /// Returns a line on the model and its data for people, if there is more to say than of any
    /// model.
    pub fn describe_line(&self) -> Option<String> {
        match self {
            Self::Model(_) => None,
            #[cfg(feature = "generate")]
            Self::Language(subject) => Some(subject.describe_line()),
        }
    }

    /// Returns the mean number of tokens of an example, if examples have tokens.
    pub fn tokens_per_example(&self) -> Option<f64> {
        match self {
            Self::Model(_) => None,
            #[cfg(feature = "generate")]
            Self::Language(subject) => Some(subject.tokens_per_example()),
        }
    }
}

/// Returns the first of these paths that leads to the same file as one of the others.
fn find_same_file<'a>(paths: &'a [PathBuf], others: &[PathBuf]) -> Option<&'a PathBuf> {
    let others = others.iter().filter_map(|path| path.canonicalize().ok());
    let others: Vec<PathBuf> = others.collect();
    let is_same = |path: &&PathBuf| path.canonicalize().is_ok_and(|it| others.contains(&it));
    paths.iter().find(is_same)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_link_leads_to_the_file_that_the_run_reads() {
        let home = tempfile::tempdir().unwrap();
        let [model, images, other] =
            ["net.onnx", "x.npy", "tuned.onnx"].map(|it| home.path().join(it));
        fs::write(&model, "a model").unwrap();
        fs::write(&images, "images").unwrap();
        let read = [model.clone(), images];
        assert_eq!(find_same_file(&read, std::slice::from_ref(&other)), None);
        assert_eq!(
            find_same_file(&read, std::slice::from_ref(&model)),
            Some(&model)
        );
        let detour = home.path().join(".").join("net.onnx");
        assert_eq!(find_same_file(&read, &[detour]), Some(&model));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(&model, &other).unwrap();
            assert_eq!(find_same_file(&read, &[other]), Some(&model));
        }
    }
}
