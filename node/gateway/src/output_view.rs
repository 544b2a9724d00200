//! Describes the outputs of a job for the API: name, shape, hash and meaning. It caches the
//! descriptions, because each needs a hash of all bytes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde::Serialize;
use souk_node::buyer::value_labels::{Meaning, ValueLabels};
use souk_node::memory::Tensor;
use souk_node::memory::safetensors::TensorPlace;
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

    /// Returns the outputs of a job if the cache knows them, and nothing if it has none. Reads no
    /// output.
    pub fn known_views(&self, folder: &JobFolder) -> Option<Vec<OutputView>> {
        let path = folder.outputs_file();
        let Ok(written) = written_at(&path) else {
            return Some(Vec::new());
        };
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, views) = known.get(&path)?;
        (*at == written).then(|| views.clone())
    }

    /// Reads and describes the outputs of a job, one at a time.
    pub fn read_views(&self, folder: &JobFolder) -> Vec<OutputView> {
        let views = describe_stored(folder).unwrap_or_default();
        self.store_views(folder, views.clone());
        views
    }

    /// Stores the description of outputs, which must be in their file already.
    pub fn store_views(&self, folder: &JobFolder, views: Vec<OutputView>) {
        let path = folder.outputs_file();
        let Ok(written) = written_at(&path) else {
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
    let view = |(name, tensor): (&String, &Tensor)| OutputView::new(&legend, name, tensor);
    outputs.iter().map(view).collect()
}

/// Describes the outputs in the file of a job, and holds one of them at a time.
fn describe_stored(folder: &JobFolder) -> io::Result<Vec<OutputView>> {
    let legend = folder.read_legend().unwrap_or_default();
    let (mut file, places) = folder.open_outputs()?;
    let view = |(name, place): (&String, &TensorPlace)| {
        let tensor = read_tensor(&mut file, place)?;
        Ok(OutputView::new(&legend, name, &tensor))
    };
    places.iter().map(view).collect()
}

/// Reads one tensor of a file.
pub fn read_tensor(file: &mut File, place: &TensorPlace) -> io::Result<Tensor> {
    let length = usize::try_from(place.bytes.end - place.bytes.start).map_err(io::Error::other)?;
    let mut elements = vec![0; length];
    file.seek(SeekFrom::Start(place.bytes.start))?;
    file.read_exact(&mut elements)?;
    let tensor = Tensor::new(place.dtype, place.shape.clone(), elements.into());
    tensor.map_err(io::Error::other)
}

fn written_at(path: &Path) -> io::Result<SystemTime> {
    path.metadata()?.modified()
}

impl OutputView {
    fn new(legend: &ValueLabels, name: &str, tensor: &Tensor) -> OutputView {
        OutputView {
            meaning: legend.output_kind(name),
            name: name.to_owned(),
            dtype: tensor.dtype().to_string(),
            shape: tensor.dims().to_vec(),
            blake3: tensor.id().to_string(),
            bytes: tensor.bytes().len(),
        }
    }
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
        let cache = OutputCache::default();
        assert!(cache.known_views(&folder).is_none());
        assert_eq!(told(cache.read_views(&folder)), described, "as read");
        cache.store_views(&folder, Vec::new());
        let known = cache.known_views(&folder);
        assert!(known.is_some_and(|views| views.is_empty()), "as remembered");
        let none = JobFolder::new(jobs.path(), "another");
        assert!(
            cache
                .known_views(&none)
                .is_some_and(|views| views.is_empty())
        );
    }
}
