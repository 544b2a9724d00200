//! Reads the request files of a job of `souk submit`, and finds the answers that earlier processes
//! stored. [`SubmitRun`](super::submit_run::SubmitRun) runs what is left, and the audit and
//! disputes read the same requests again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use souk_node::buyer::value_labels::ValueLabels;
use souk_node::buyer::{Journal, Quote, request_of};
use souk_node::memory::{ContentId, DType, Tensor};

use super::from_quote;
use crate::args::SubmitArgs;
use crate::failure::{Failure, Kind, Outcome};
use crate::files::{self, Request};

/// The requests of a job.
pub struct RequestFiles {
    /// Requests in separate files; `None` for a single request with the inputs of `-i`.
    pub stream: Option<Vec<Request>>,
    /// Id of each request.
    request_ids: Vec<ContentId>,
    /// Inputs that all requests share.
    common: BTreeMap<String, Tensor>,
    /// Inputs of the first request.
    pub first: BTreeMap<String, Tensor>,
    /// Ids of the inputs of all requests.
    input_ids: BTreeSet<ContentId>,
    /// Labels that map texts to numbers.
    pub legend: ValueLabels,
}

/// An answer in files.
#[derive(Clone)]
pub struct AnswerFiles {
    /// Paths of the files.
    pub files: Vec<PathBuf>,
    /// The outputs; of a stream none, since the files hold them.
    pub outputs: BTreeMap<String, Tensor>,
    /// Ids of all outputs.
    pub output_ids: BTreeSet<ContentId>,
}

impl AnswerFiles {
    /// Returns an answer whose files hold these outputs.
    pub fn new(files: Vec<PathBuf>, outputs: BTreeMap<String, Tensor>) -> AnswerFiles {
        AnswerFiles {
            output_ids: outputs.values().map(Tensor::id).collect(),
            files,
            outputs,
        }
    }
}

impl RequestFiles {
    /// Reads every request once before any payment. All must have the shapes of the first.
    pub fn read(args: &SubmitArgs) -> Result<RequestFiles, Failure> {
        let stream = args
            .stream
            .as_deref()
            .map(files::list_requests)
            .transpose()?;
        let legend = ValueLabels::from_model(files::read(&args.job.model)?);
        let common = files::read_inputs(&args.job.input, &legend)?;
        let mut files = RequestFiles {
            legend,
            stream,
            request_ids: Vec::new(),
            first: common.clone(),
            common,
            input_ids: BTreeSet::new(),
        };
        for place in 0..files.request_count() {
            let inputs = files.request_inputs(place)?;
            if place == 0 {
                files.first = inputs.clone();
            }
            let (found, expected) = (input_shapes(&inputs), input_shapes(&files.first));
            if found != expected {
                let requests = files.stream.as_ref();
                let path = requests.map(|all| all[place].path().to_string());
                let path = path.unwrap_or_default();
                let cause = format!("{path} holds {found:?}, the first request {expected:?}");
                let hint = "give requests of one shape; submit the others by themselves";
                return Err(Failure::new(Kind::Input, cause, hint));
            }
            files.request_ids.push(request_of(&inputs));
            files.input_ids.extend(inputs.values().map(Tensor::id));
        }
        Ok(files)
    }

    /// Checks each request after the first, which the quote is for: its indices must not lie past
    /// an end.
    pub fn check_indices(&self, quote: &Quote) -> Outcome {
        let may_index = |it: &Tensor| matches!(it.dtype(), DType::I32 | DType::I64);
        if !self.first.values().any(may_index) {
            return Ok(());
        }
        for place in 1..self.request_count() {
            let checked = quote.check_request(&self.request_inputs(place)?);
            checked.map_err(from_quote)?;
        }
        Ok(())
    }

    pub fn request_count(&self) -> usize {
        self.stream.as_ref().map_or(1, Vec::len)
    }

    /// Returns whether these inputs of a request are those that were submitted.
    pub fn is_unchanged(&self, place: usize, inputs: &BTreeMap<String, Tensor>) -> bool {
        self.request_ids[place] == request_of(inputs)
    }

    /// Reads the inputs of all requests, one request after the other, and leaves out those that
    /// cannot be read.
    pub fn all_inputs(&self) -> impl Iterator<Item = Tensor> {
        let places = 0..self.request_count();
        let inputs = places.filter_map(|place| self.request_inputs(place).ok());
        inputs.flat_map(BTreeMap::into_values)
    }

    /// Returns the inputs of a request.
    pub fn request_inputs(&self, place: usize) -> Result<BTreeMap<String, Tensor>, Failure> {
        let mut inputs = match &self.stream {
            None => self.common.clone(),
            Some(requests) => requests[place].read(&self.common, &self.legend)?,
        };
        files::prepare_texts(&mut inputs, &self.legend)?;
        Ok(inputs)
    }

    /// Returns the name of a request, which is empty for a single one.
    pub fn name(&self, place: usize) -> &str {
        let requests = self.stream.as_ref();
        requests.map_or("", |requests| &requests[place].stem)
    }

    /// Returns the ids of the inputs of all requests.
    pub fn input_ids(&self) -> &BTreeSet<ContentId> {
        &self.input_ids
    }

    /// Describes the number of requests if there can be several.
    pub fn how_many(&self) -> String {
        let requests = self.stream.as_ref();
        requests.map_or_else(String::new, |all| format!(", {} requests", all.len()))
    }

    /// Returns the answers that a journal names and whose files hold them, by the indices of their
    /// requests.
    pub fn find_stored_answers(
        &self,
        args: &SubmitArgs,
        journal: &Journal,
    ) -> BTreeMap<usize, AnswerFiles> {
        let answered = journal.fold_past().answered;
        let kept = |(place, asked): (usize, &ContentId)| {
            let outputs = answered.get(asked)?.outputs.iter().cloned().collect();
            let folder = args.out.join(self.name(place));
            let (files, outputs) = files::find_matching_outputs(&folder, &outputs, args.format)?;
            Some((place, AnswerFiles::new(files, outputs)))
        };
        self.request_ids
            .iter()
            .enumerate()
            .filter_map(kept)
            .collect()
    }
}

fn input_shapes(inputs: &BTreeMap<String, Tensor>) -> BTreeMap<String, String> {
    let facts = |tensor: &Tensor| format!("{} {}", tensor.dtype(), tensor.shape());
    inputs
        .iter()
        .map(|(name, tensor)| (name.clone(), facts(tensor)))
        .collect()
}
