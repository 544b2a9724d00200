//! The answers of a stream that are with its buyer: a line each, added as they come.
//!
//! ```text
//! FOLDER/JOB/answers.jsonl     for each answer, what was asked, under which job id, what was given
//! ```
//! What was asked is named by content, so a request whose file is another one by the time the
//! stream is resumed is a new request. A line says that an answer was given on, not that whoever
//! took it has it on disk: that is for him to see, who has the ids to compare with. So a line need
//! not be durable either; one that is lost or torn is a request that is asked again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use souk_market::JobId;
use souk_memory::{ContentId, Tensor};

use super::{Journal, JournalError, file};

/// The file, in the job's folder.
const ANSWERS_FILE: &str = "answers.jsonl";

/// One request that was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// What was asked, by [`request_id`].
    pub request: ContentId,
    /// The id that the leases were bought under which answered it.
    pub job: JobId,
    /// The outputs by name.
    pub outputs: BTreeMap<String, ContentId>,
}

/// What names a request: its inputs and what they are called.
pub fn request_id(inputs: &BTreeMap<String, Tensor>) -> ContentId {
    let mut words = Vec::new();
    for (name, tensor) in inputs {
        words.extend_from_slice(&(name.len() as u64).to_le_bytes());
        words.extend_from_slice(name.as_bytes());
        words.extend_from_slice(tensor.id().as_bytes());
    }
    ContentId::of(&words)
}

impl Journal {
    /// Notes an answer that is about to be given on.
    pub(in crate::buyer) fn note(&self, answer: &Noted) -> Result<(), JournalError> {
        let path = self.folder.join(ANSWERS_FILE);
        // A line ends the one before it, which may have been torn.
        let text = serde_json::to_string(answer).map_err(io::Error::other);
        let text = text.map_err(file(&path))?;
        let opened = OpenOptions::new().append(true).create(true).open(&path);
        let written = opened.and_then(|mut out| out.write_all(format!("\n{text}").as_bytes()));
        written.map_err(file(&path))
    }

    /// The answers that were given on, oldest first.
    ///
    /// # Errors
    /// When the file cannot be read; lines that cannot are left out.
    pub fn answers(&self) -> Result<Vec<Noted>, JournalError> {
        let path = self.folder.join(ANSWERS_FILE);
        match fs::read(&path) {
            Ok(bytes) => {
                let lines = bytes.split(|byte| *byte == b'\n');
                let noted = lines.filter_map(|line| serde_json::from_slice(line).ok());
                Ok(noted.collect())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(file(&path)(error)),
        }
    }

    /// Forgets the answers of a job that is done.
    pub(super) fn forget_answers(&self) {
        // Left behind, they only take room.
        let _ = fs::remove_file(self.folder.join(ANSWERS_FILE));
    }
}

/// What the answers given under a job id are made of, by output.
pub(in crate::buyer) fn given_under(
    noted: &[Noted],
    job: JobId,
) -> BTreeMap<String, BTreeSet<ContentId>> {
    let mut given = BTreeMap::<String, BTreeSet<ContentId>>::new();
    for answer in noted.iter().filter(|answer| answer.job == job) {
        for (name, id) in &answer.outputs {
            given.entry(name.clone()).or_default().insert(*id);
        }
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(request: u8, job: u8) -> Noted {
        let outputs = [("y".to_owned(), ContentId::of(&[request, job]))].into();
        Noted {
            request: ContentId::of(&[request]),
            job: JobId([job; 32]),
            outputs,
        }
    }

    #[test]
    fn a_torn_line_is_left_out_and_takes_no_other_along() {
        let folder = tempfile::tempdir().unwrap();
        let (first, subject) = (JobId([7; 32]), ContentId::of(b"model"));
        let journal =
            Journal::create(folder.path(), first, 0, subject, serde_json::json!({})).unwrap();
        assert_eq!(journal.answers().unwrap(), []);
        journal.note(&noted(1, 1)).unwrap();
        journal.note(&noted(2, 1)).unwrap();
        let path = journal.folder.join(ANSWERS_FILE);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 9]).unwrap();
        journal.note(&noted(3, 2)).unwrap();
        let answers = journal.answers().unwrap();
        assert_eq!(answers, [noted(1, 1), noted(3, 2)]);
        let given = given_under(&answers, JobId([2; 32]));
        assert_eq!(given["y"], [ContentId::of(&[3, 2])].into());
    }

    #[test]
    fn a_request_is_named_by_what_its_inputs_are_and_are_called() {
        let of = |name: &str, value: f32| {
            let tensor = Tensor::from_vec([1], vec![value]).unwrap();
            request_id(&[(name.to_owned(), tensor)].into())
        };
        assert_eq!(of("x", 1.0), of("x", 1.0));
        assert_ne!(of("x", 1.0), of("x", 2.0));
        assert_ne!(of("x", 1.0), of("y", 1.0));
    }
}
