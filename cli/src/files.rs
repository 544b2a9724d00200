//! Reads and writes the files that users name on the command line: models, requests, answers and
//! receipts. The commands on jobs, models and receipts use it. Each error names its file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde_json::Value;
use souk_node::buyer::value_labels::ValueLabels;
use souk_node::market::Receipt;
use souk_node::memory::{ContentId, Tensor, npy, safetensors};

use crate::args::{Format, SubmitArgs};
use crate::failure::{Failure, Kind, Outcome};

/// Reads a whole file.
pub fn read(path: &Path) -> Result<Bytes, Failure> {
    let read = std::fs::read(path).map(Bytes::from);
    read.map_err(|error| {
        let cause = format!("cannot read {}: {error}", path.display());
        Failure::new(Kind::Input, cause, "check the path and its permissions")
    })
}

/// Reads the inputs of `-i`: NAME=FILE.npy, or FILE.safetensors with all its tensors.
pub fn read_inputs(
    given: &[String],
    legend: &ValueLabels,
) -> Result<BTreeMap<String, Tensor>, Failure> {
    let mut inputs = BTreeMap::new();
    for text in given {
        let tensors = match text.split_once('=') {
            Some((name, file)) => read_named(name, Path::new(file), legend)?,
            None => read_each(Path::new(text), legend)?,
        };
        for (name, tensor) in tensors {
            if inputs.insert(name.clone(), tensor).is_some() {
                let cause = format!("the input {name} is given twice");
                return Err(Failure::new(Kind::Input, cause, "give each input once"));
            }
        }
    }
    Ok(inputs)
}

/// Computes the model's text preprocessing.
pub fn prepare_texts(inputs: &mut BTreeMap<String, Tensor>, legend: &ValueLabels) -> Outcome {
    legend.prepare_inputs(inputs).map_err(|error| {
        let hint = "give each input of texts as NAME=FILE.npy, an array of str";
        Failure::new(Kind::Input, error.to_string(), hint)
    })
}

/// Lists the requests of a stream: the files in FOLDER or NAME=FOLDER that can be inputs, sorted by
/// name.
pub fn list_requests(from: &str) -> Result<Vec<Request>, Failure> {
    let (name, folder) = match from.split_once('=') {
        Some((name, folder)) => (Some(name.to_owned()), Path::new(folder)),
        None => (None, Path::new(from)),
    };
    let wanted = if name.is_some() { "npy" } else { "safetensors" };
    let unread = |error: std::io::Error| {
        let cause = format!("cannot list {}: {error}", folder.display());
        Failure::new(Kind::Input, cause, "give a folder that can be read")
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unread)? {
        let path = entry.map_err(unread)?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let is_wanted = path
            .extension()
            .is_some_and(|extension| extension == wanted);
        if let Some(stem) = stem.filter(|_| is_wanted) {
            let (stem, name) = (stem.to_owned(), name.clone());
            found.push(Request { stem, path, name });
        }
    }
    found.sort_by(|a, b| a.stem.cmp(&b.stem));
    if found.is_empty() {
        let cause = format!("{} holds no .{wanted} file", folder.display());
        let hint = "--stream FOLDER takes .safetensors files, --stream NAME=FOLDER .npy files";
        return Err(Failure::new(Kind::Input, cause, hint));
    }
    Ok(found)
}

/// Returns the folders that can hold a submission's answers, relative to its own: that one itself
/// for a single request.
pub fn answer_folders(args: &SubmitArgs) -> Result<Vec<PathBuf>, Failure> {
    if args.stream.is_none() {
        return Ok(vec![PathBuf::new()]);
    }
    let entries = std::fs::read_dir(&args.out).map_err(|error| {
        let cause = format!("cannot list {}: {error}", args.out.display());
        Failure::new(Kind::Input, cause, "give a folder that can be read")
    })?;
    let folders = entries.flatten().filter(|entry| entry.path().is_dir());
    let mut names: Vec<PathBuf> = folders.map(|entry| entry.file_name().into()).collect();
    names.sort();
    Ok(names)
}

/// One request of a stream, in a file.
#[derive(Clone, Debug)]
pub struct Request {
    /// The file's name without its ending, which names the answer.
    pub stem: String,
    path: PathBuf,
    /// Name of the input for an array; `None` if the file names its tensors itself.
    name: Option<String>,
}

impl Request {
    /// Reads the request, and adds the inputs that all requests share.
    pub fn read(
        &self,
        common: &BTreeMap<String, Tensor>,
        legend: &ValueLabels,
    ) -> Result<BTreeMap<String, Tensor>, Failure> {
        let mut inputs = match &self.name {
            Some(name) => read_named(name, &self.path, legend)?,
            None => read_each(&self.path, legend)?,
        };
        for (name, tensor) in common {
            if inputs.insert(name.clone(), tensor.clone()).is_some() {
                let cause = format!("the input {name} is given with -i and by {}", self.path());
                return Err(Failure::new(Kind::Input, cause, "give each input once"));
            }
        }
        Ok(inputs)
    }

    /// Returns the file's path for messages.
    pub fn path(&self) -> std::path::Display<'_> {
        self.path.display()
    }
}

/// Writes outputs into `folder` and returns the files in order.
pub fn write_outputs(
    folder: &Path,
    outputs: &BTreeMap<String, Tensor>,
    format: Format,
) -> Result<Vec<PathBuf>, Failure> {
    match format {
        Format::Safetensors => {
            let path = folder.join("outputs.safetensors");
            let bytes =
                safetensors::write(outputs).map_err(|error| output_failure(&path, &error))?;
            write(&path, &bytes)?;
            Ok(vec![path])
        }
        Format::Npy => outputs
            .iter()
            .map(|(name, tensor)| write_npy(folder, name, tensor))
            .collect(),
    }
}

/// Writes the meanings of outputs into `folder`, for those whose values stand for something else.
pub fn write_meanings(
    folder: &Path,
    meanings: &BTreeMap<String, Value>,
) -> Result<Vec<PathBuf>, Failure> {
    let mut written = Vec::new();
    for (name, meaning) in meanings {
        let path = folder.join(format!("{}.json", file_name(name)));
        write(&path, meaning.to_string().as_bytes())?;
        written.push(path);
    }
    Ok(written)
}

/// Returns the files of [`write_outputs`] in `folder` and their tensors, if these match the ids.
pub fn find_matching_outputs(
    folder: &Path,
    ids: &BTreeMap<String, ContentId>,
    format: Format,
) -> Option<(Vec<PathBuf>, BTreeMap<String, Tensor>)> {
    let (files, found) = match format {
        Format::Safetensors => {
            let path = folder.join("outputs.safetensors");
            let tensors = read_all(&path).ok()?;
            (vec![path], tensors)
        }
        Format::Npy => {
            let read = |name: &String| {
                let path = npy_path(folder, name);
                let tensor = npy::read(&read(&path).ok()?).ok()?;
                Some((path, (name.clone(), tensor)))
            };
            let read: Option<Vec<_>> = ids.keys().map(read).collect();
            read?.into_iter().unzip()
        }
    };
    let of = |name: &String| found.get(name).map(Tensor::id);
    // The files can hold more than providers computed: inputs and constants that are outputs.
    let is_it = ids.iter().all(|(name, id)| of(name) == Some(*id));
    is_it.then_some((files, found))
}

/// Creates a folder and checks that files can be written in it.
pub fn prepare_folder(folder: &Path) -> Result<(), Failure> {
    let probe = folder.join(".souk-probe");
    write(&probe, b"souk")?;
    // A file that stays does no harm.
    let _ = std::fs::remove_file(probe);
    Ok(())
}

/// Writes a file atomically, and creates the folders above it.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let written = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let written = written.and_then(|()| replace_file(path, bytes));
    written.map_err(|error| {
        let cause = format!("cannot write {}: {error}", path.display());
        Failure::new(
            Kind::Input,
            cause,
            "choose a folder that can be written, with space left",
        )
    })
}

/// Writes a file under a temporary name in its folder, then renames it. Writes directly to a
/// device, a pipe or another special file.
fn replace_file(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let is_plain = std::fs::metadata(path).map_or(true, |found| found.is_file());
    let Some(name) = path.file_name().filter(|_| is_plain) else {
        return std::fs::write(path, bytes);
    };
    let mut unfinished = std::ffi::OsString::from(".");
    unfinished.push(name);
    unfinished.push(format!(".{}", std::process::id()));
    let unfinished = path.with_file_name(unfinished);
    let written =
        std::fs::write(&unfinished, bytes).and_then(|()| std::fs::rename(&unfinished, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&unfinished);
    }
    written
}

/// Reads a receipt.
pub fn read_receipt(path: &Path) -> Result<Receipt, Failure> {
    serde_json::from_slice(&read(path)?).map_err(|error| {
        let cause = format!("{} is not a receipt: {error}", path.display());
        Failure::new(
            Kind::Input,
            cause,
            "give a receipt-*.json that `souk submit` wrote",
        )
    })
}

fn write_npy(folder: &Path, name: &str, tensor: &Tensor) -> Result<PathBuf, Failure> {
    let path = npy_path(folder, name);
    let bytes = npy::write(tensor).map_err(|error| output_failure(&path, &error))?;
    write(&path, &bytes)?;
    Ok(path)
}

fn npy_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{}.npy", file_name(name)))
}

/// Converts an output's name to a file name, as the API does in addresses: replaces each character
/// that a file name cannot hold, and `%` itself, by `%` and its hexadecimal value. So different
/// names stay different.
fn file_name(name: &str) -> String {
    if matches!(name, "" | "." | "..") {
        return if name.is_empty() {
            "%".to_owned()
        } else {
            name.replace('.', "%2E")
        };
    }
    let mut safe = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            '/' | '\\' | '%' => safe.push_str(&format!("%{:02X}", u32::from(character))),
            _ if character.is_control() => safe.push_str(&format!("%{:02X}", u32::from(character))),
            _ => safe.push(character),
        }
    }
    safe
}

fn output_failure(path: &Path, error: &impl std::fmt::Display) -> Failure {
    let cause = format!("{} cannot hold this output: {error}", path.display());
    Failure::new(Kind::Input, cause, "try the other --format")
}

fn read_named(
    name: &str,
    path: &Path,
    legend: &ValueLabels,
) -> Result<BTreeMap<String, Tensor>, Failure> {
    if is_safetensors(path) {
        let mut all = read_all(path)?;
        let known = all.keys().cloned().collect::<Vec<_>>().join(", ");
        let tensor = all.remove(name).ok_or_else(|| {
            let cause = format!("{} has no tensor {name}", path.display());
            Failure::new(Kind::Input, cause, format!("its tensors are {known}"))
        })?;
        check_texts(name, path, false, legend)?;
        return Ok(BTreeMap::from([(name.to_owned(), tensor)]));
    }
    let (tensor, is_text) = legend.read_tensor(&read(path)?).map_err(|error| {
        let cause = format!("{}: {error}", path.display());
        Failure::new(Kind::Input, cause, "write it again with numpy.save")
    })?;
    check_texts(name, path, is_text, legend)?;
    Ok(BTreeMap::from([(name.to_owned(), tensor)]))
}

fn check_texts(name: &str, path: &Path, is_text: bool, legend: &ValueLabels) -> Outcome {
    legend.check_input(name, is_text).map_err(|error| {
        let cause = format!("{}: {error}", path.display());
        let hint =
            "give texts as NAME=FILE.npy, an array of str; numbers as an array of their type";
        Failure::new(Kind::Input, cause, hint)
    })
}

/// Reads all tensors of a file; fails if one of them should hold texts.
fn read_each(path: &Path, legend: &ValueLabels) -> Result<BTreeMap<String, Tensor>, Failure> {
    let all = read_all(path)?;
    let mut names = all.keys();
    names.try_for_each(|name| check_texts(name, path, false, legend))?;
    Ok(all)
}

fn read_all(path: &Path) -> Result<BTreeMap<String, Tensor>, Failure> {
    if !is_safetensors(path) {
        let cause = format!("\"{}\" names no input", path.display());
        return Err(Failure::new(Kind::Input, cause, "write -i NAME=FILE.npy"));
    }
    safetensors::read(&read(path)?).map_err(|error| {
        let cause = format!("{}: {error}", path.display());
        Failure::new(
            Kind::Input,
            cause,
            "write it again with safetensors.numpy.save_file",
        )
    })
}

/// Reads the tensors of a file, .npy or .safetensors.
pub fn read_tensors(path: &Path) -> Result<Vec<Tensor>, Failure> {
    if is_safetensors(path) {
        return Ok(read_all(path)?.into_values().collect());
    }
    let tensor = npy::read(&read(path)?).map_err(|error| {
        let cause = format!("{}: {error}", path.display());
        Failure::new(Kind::Input, cause, "write it again with numpy.save")
    })?;
    Ok(vec![tensor])
}

fn is_safetensors(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "safetensors")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_name_cannot_lead_out_of_the_folder() {
        assert_eq!(file_name("../../etc/passwd"), "..%2F..%2Fetc%2Fpasswd");
        assert_eq!(file_name(".."), "%2E%2E");
        assert_eq!(file_name(""), "%");
        assert_eq!(file_name("sentence_embedding"), "sentence_embedding");
    }

    #[test]
    fn outputs_of_names_that_are_alike_are_in_files_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["a/b", "a_b", "a\\b", "a%2Fb", "a:0", ".", "..", "", "%"];
        let tensor = |place: usize| Tensor::scalar(i64::try_from(place).unwrap());
        let outputs = names.iter().enumerate();
        let outputs: BTreeMap<String, Tensor> = outputs
            .map(|(place, name)| ((*name).to_owned(), tensor(place)))
            .collect();
        let files = write_outputs(folder.path(), &outputs, Format::Npy).unwrap();
        for (path, tensor) in files.iter().zip(outputs.values()) {
            assert_eq!(path.parent(), Some(folder.path()));
            assert_eq!(&npy::read(&read(path).unwrap()).unwrap(), tensor);
        }
        let ids = outputs.iter().map(|(name, it)| (name.clone(), it.id()));
        assert!(find_matching_outputs(folder.path(), &ids.collect(), Format::Npy).is_some());
    }

    #[test]
    fn texts_and_numbers_are_not_taken_for_each_other() {
        let declared = |name: &str, code| souk_onnx::ValueInfoProto::new_tensor(name, code, None);
        let model = souk_onnx::ModelProto {
            ir_version: Some(10),
            graph: Some(souk_onnx::GraphProto {
                input: vec![declared("town", 8), declared("count", 7)],
                ..souk_onnx::GraphProto::default()
            }),
            ..souk_onnx::ModelProto::default()
        };
        let legend = ValueLabels::from_model(souk_onnx::encode_model(&model));
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, kind: &str, data: &[u8]| {
            let path = folder.path().join(name);
            let head = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': (1,), }}\n");
            let size = u16::try_from(head.len()).unwrap().to_le_bytes();
            let bytes = [b"\x93NUMPY\x01\x00", &size[..], head.as_bytes(), data].concat();
            std::fs::write(&path, bytes).unwrap();
            path.display().to_string()
        };
        let numbers = write("numbers.npy", "<i8", &[0; 8]);
        let texts = write("texts.npy", "<U1", &u32::from('a').to_le_bytes());
        let given = |name: &str, path: &str| {
            let read = read_inputs(&[format!("{name}={path}")], &legend);
            read.map(|inputs| inputs.len()).map_err(|it| it.cause)
        };
        assert_eq!(given("town", &texts), Ok(1));
        assert_eq!(given("count", &numbers), Ok(1));
        let wrong = given("town", &numbers).unwrap_err();
        assert!(wrong.contains("the input town takes texts"), "{wrong}");
        let wrong = given("count", &texts).unwrap_err();
        assert!(wrong.contains("the input count takes numbers"), "{wrong}");
    }

    #[test]
    fn files_hold_what_was_written_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let y = Tensor::from_vec([2], vec![1.0_f32, 2.0]).unwrap();
        let outputs: BTreeMap<_, _> = [("y".to_owned(), y)].into();
        let ids = outputs.iter().map(|(name, y)| (name.clone(), y.id()));
        let ids: BTreeMap<String, ContentId> = ids.collect();
        for format in [Format::Npy, Format::Safetensors] {
            assert_eq!(
                find_matching_outputs(folder.path(), &ids, format),
                None,
                "nothing is there"
            );
            let files = write_outputs(folder.path(), &outputs, format).unwrap();
            let held = find_matching_outputs(folder.path(), &ids, format);
            assert_eq!(held, Some((files.clone(), outputs.clone())));
            // As a kill in the middle of it leaves a file.
            let whole = std::fs::read(&files[0]).unwrap();
            std::fs::write(&files[0], &whole[..whole.len() - 1]).unwrap();
            assert_eq!(find_matching_outputs(folder.path(), &ids, format), None);
            let mut other = whole.clone();
            *other.last_mut().unwrap() ^= 1;
            std::fs::write(&files[0], other).unwrap();
            assert_eq!(find_matching_outputs(folder.path(), &ids, format), None);
        }
    }

    #[test]
    fn an_input_given_twice_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        let tensor = Tensor::from_vec([1], vec![1.0_f32]).unwrap();
        write(&path, &npy::write(&tensor).unwrap()).unwrap();
        let given = format!("x={}", path.display());
        let refused = read_inputs(&[given.clone(), given], &ValueLabels::default()).unwrap_err();
        assert_eq!(refused.kind, Kind::Input);
        assert!(refused.cause.contains("twice"));
    }
}
