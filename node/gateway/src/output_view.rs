//! Describes the outputs of a job for the API: name, shape, hash and meaning. It caches the
//! descriptions, because each needs a hash of all bytes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde::Serialize;
use souk_node::buyer::value_labels::Meaning;
use souk_node::memory::Tensor;
use utoipa::ToSchema;

use crate::job_folder::JobFolder;

/// An output.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct OutputView {
    pub name: String,
    dtype: String,
    shape: Vec<usize>,
    /// The BLAKE3 of the tensor, which its receipt names.
    pub blake3: String,
    bytes: usize,
    /// What its numbers stand for, if not for themselves: `Accept: application/json` gives that.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "texts")]
    meaning: Option<Meaning>,
}

/// Descriptions of outputs, valid while their files stay the same: a description needs a hash of
/// all bytes.
#[derive(Default)]
pub struct OutputCache(Mutex<BTreeMap<PathBuf, (SystemTime, Vec<OutputView>)>>);

impl OutputCache {
    /// Jobs whose outputs the cache holds.
    const JOBS_MAX: usize = 256;

    /// Returns the outputs of a job.
    pub fn outputs_for_job(&self, folder: &JobFolder) -> Vec<OutputView> {
        let path = folder.outputs_file();
        let written = path.metadata().and_then(|file| file.modified());
        let Ok(written) = written else {
            return Vec::new();
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, views)) = known.get(&path)
            && *at == written
        {
            return views.clone();
        }
        let views = describe_outputs(folder, &folder.read_outputs().unwrap_or_default());
        if known.len() >= OutputCache::JOBS_MAX {
            known.pop_first();
        }
        known.insert(path, (written, views.clone()));
        views
    }

    /// Stores the description of outputs, which must be in their file already.
    pub fn store_views(&self, folder: &JobFolder, views: Vec<OutputView>) {
        let path = folder.outputs_file();
        let Ok(written) = path.metadata().and_then(|file| file.modified()) else {
            return;
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= OutputCache::JOBS_MAX {
            known.pop_first();
        }
        known.insert(path, (written, views));
    }
}

/// Describes outputs; this hashes each of them.
pub fn describe_outputs(folder: &JobFolder, outputs: &BTreeMap<String, Tensor>) -> Vec<OutputView> {
    let legend = folder.read_legend().unwrap_or_default();
    let view = |(name, tensor): (&String, &Tensor)| OutputView {
        meaning: legend.output_kind(name),
        name: name.clone(),
        dtype: tensor.dtype().to_string(),
        shape: tensor.dims().to_vec(),
        blake3: tensor.id().to_string(),
        bytes: tensor.bytes().len(),
    };
    outputs.iter().map(view).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_described_while_they_were_written_are_not_read_for_that_again() {
        let jobs = tempfile::tempdir().unwrap();
        let folder = JobFolder::new(jobs.path(), "job");
        let tensor = Tensor::from_vec([2, 2], vec![1.0f32, 2.0, 3.0, 4.0]).unwrap();
        let outputs = BTreeMap::from([("y".to_owned(), tensor)]);
        folder.write_outputs(&outputs).unwrap();
        let told = |views: Vec<OutputView>| serde_json::to_value(views).unwrap();
        let described = told(describe_outputs(&folder, &outputs));
        assert_eq!(
            told(OutputCache::default().outputs_for_job(&folder)),
            described,
            "as read"
        );
        let cache = OutputCache::default();
        cache.store_views(&folder, Vec::new());
        assert!(cache.outputs_for_job(&folder).is_empty(), "as remembered");
    }
}
