//! Outputs as the API shows them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde::Serialize;
use souk_node::buyer::legend::Meaning;
use souk_node::memory::Tensor;
use utoipa::ToSchema;

use crate::command::Folder;

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

/// Outputs as they were described, for as long as their files are the same: to hash them again for
/// each question is to read all of them.
#[derive(Default)]
pub struct OutputCache(Mutex<BTreeMap<PathBuf, (SystemTime, Vec<OutputView>)>>);

impl OutputCache {
    /// Jobs whose outputs are remembered.
    const JOBS_MAX: usize = 256;

    /// Of a job.
    pub fn of(&self, folder: &Folder) -> Vec<OutputView> {
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
        let outputs = folder.outputs().unwrap_or_default();
        let legend = folder.legend().unwrap_or_default();
        let view = |(name, tensor): (String, Tensor)| OutputView {
            meaning: legend.kind(&name),
            name,
            dtype: tensor.dtype().to_string(),
            shape: tensor.dims().to_vec(),
            blake3: tensor.id().to_string(),
            bytes: tensor.bytes().len(),
        };
        let views: Vec<OutputView> = outputs.into_iter().map(view).collect();
        if known.len() >= OutputCache::JOBS_MAX {
            known.pop_first();
        }
        known.insert(path, (written, views.clone()));
        views
    }
}
