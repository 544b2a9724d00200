//! Stores a log of facts: a file with one line for each recorded step of a node's work, which the
//! node reads after a crash to continue. The journals of buyers and providers are such logs.
//!
//! ```text
//! {"checksum":"5f0c62a1b4d39e78","format":"job-facts-2","sequence":7,"fact":{…}}
//! ```
//! Facts are durable when [`FactLog::append_facts`] returns. A crash may leave more behind them: an
//! incomplete line, or space that the file reserved and the disk never wrote, which holds zeros.
//! The log cuts this off, because no caller was promised it. Any other deviation is damage, and the
//! log refuses to open, because a lost fact is work done twice or a payment forgotten. The checksum
//! covers the rest of its line, and lines are numbered, so a changed, missing or repeated line
//! shows.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The beginning of each line.
const PREFIX: &str = "{\"checksum\":\"";

/// Digits of a checksum: the first 8 bytes of a BLAKE3.
const CHECKSUM_DIGITS: usize = 16;

/// An open log, locked against other writers.
#[derive(Debug)]
pub struct FactLog {
    path: PathBuf,
    /// The name of the format, in each line.
    format: &'static str,
    file: File,
    /// The number of lines.
    lines: u64,
    /// The bytes of these lines.
    length: u64,
    /// Whether an incomplete write can follow them.
    is_torn: bool,
}

/// Why a log could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FactLogError {
    /// The file system refused.
    #[error("cannot read or write {}: {source}", path.display())]
    File {
        /// The file that could not be used.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A line does not have its original content.
    #[error("line {line} of {} is damaged: {damage}", path.display())]
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: u64,
        /// The kind of damage.
        damage: Damage,
    },
    /// Another version of souk wrote the log.
    #[error(
        "{} is written in the format {}, and this souk reads only {format}",
        path.display(), found.as_deref().unwrap_or("of an older souk")
    )]
    Format {
        /// The file of the other format.
        path: PathBuf,
        /// The format that the file states; older versions of souk stated none.
        found: Option<String>,
        /// The format that this souk reads.
        format: &'static str,
    },
    /// Another process has the log open.
    #[error("{} is in use by another process", path.display())]
    Busy {
        /// The locked file.
        path: PathBuf,
    },
}

/// How a line is damaged.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// The line was altered.
    #[error("its checksum is wrong")]
    Checksum,
    /// An earlier line is missing or repeated.
    #[error("it is number {found}")]
    Sequence {
        /// The number that the line states.
        found: u64,
    },
    /// The line is intact but holds no valid fact.
    #[error("{0}")]
    Fact(#[from] serde_json::Error),
}

/// The part of a line that is read before its fact.
#[derive(Deserialize)]
struct Header {
    format: String,
    sequence: u64,
}

/// The fact of a line.
#[derive(Deserialize)]
struct Body<F> {
    fact: F,
}

/// Why a line could not be read.
enum LineFault {
    Damaged(Damage),
    Format(Option<String>),
}

impl From<Damage> for LineFault {
    fn from(damage: Damage) -> LineFault {
        LineFault::Damaged(damage)
    }
}

impl FactLog {
    /// Opens a log, or creates an empty one; cuts off what a crash left behind its lines.
    ///
    /// # Errors
    /// If the log is damaged, has another format or is open elsewhere, or the disk refuses.
    pub fn open_log<F: DeserializeOwned>(
        path: &Path,
        format: &'static str,
    ) -> Result<(FactLog, Vec<F>), FactLogError> {
        let failed = |source| file_error(path, source);
        let mut file = open_locked(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let (facts, length) = parse_facts(path, format, &bytes)?;
        // The caller will act on these lines, so they must be durable. Their writer can have died
        // before the sync; and after a failed sync, the next one writes only bytes that were
        // written again.
        file.rewind().map_err(failed)?;
        file.write_all(&bytes[..length]).map_err(failed)?;
        file.set_len(length as u64).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        sync_folder_of(path)?;
        let log = FactLog {
            path: path.to_owned(),
            format,
            file,
            lines: facts.len() as u64,
            length: length as u64,
            is_torn: false,
        };
        Ok((log, facts))
    }

    /// Reads the facts of a log, even while another process writes it.
    ///
    /// # Errors
    /// If the log is missing, damaged or of another format.
    pub fn read<F: DeserializeOwned>(
        path: &Path,
        format: &'static str,
    ) -> Result<Vec<F>, FactLogError> {
        let bytes = fs::read(path).map_err(|source| file_error(path, source))?;
        parse_facts(path, format, &bytes).map(|(facts, _)| facts)
    }

    /// Appends facts with one sync; they are durable when this returns.
    ///
    /// If a full disk took only part of a line, the next append cuts that off first.
    ///
    /// # Errors
    /// If the disk refuses: then none of the facts counts as written.
    pub fn append_facts<F: Serialize>(&mut self, facts: &[F]) -> Result<(), FactLogError> {
        let lines = format_lines(self.format, self.lines + 1, facts);
        let written = self.write(lines.as_bytes());
        self.is_torn = written.is_err();
        written.map_err(|source| file_error(&self.path, source))?;
        self.lines += facts.len() as u64;
        self.length += lines.len() as u64;
        Ok(())
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.file.set_len(self.length)?;
            self.file.seek(SeekFrom::Start(self.length))?;
        }
        self.file.write_all(lines)?;
        self.file.sync_data()
    }

    /// Replaces all facts of the log by these, atomically.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn replace_facts<F: Serialize>(&mut self, facts: &[F]) -> Result<(), FactLogError> {
        let draft = self.path.with_extension("new");
        let failed = |source| file_error(&draft, source);
        match fs::remove_file(&draft) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(failed(source)),
            _ => {}
        }
        let lines = format_lines(self.format, 1, facts);
        let mut file = open_locked(&draft)?;
        file.write_all(lines.as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        fs::rename(&draft, &self.path).map_err(failed)?;
        self.file = file;
        self.lines = facts.len() as u64;
        self.length = lines.len() as u64;
        self.is_torn = false;
        sync_folder_of(&self.path)
    }
}

/// Returns the lines of facts, numbered from `first`.
pub fn format_lines<F: Serialize>(format: &str, first: u64, facts: &[F]) -> String {
    let line = |(sequence, fact): (u64, &F)| {
        let fact = serde_json::to_string(fact).expect("plain data in memory always encodes");
        let rest = format!("\"format\":\"{format}\",\"sequence\":{sequence},\"fact\":{fact}}}");
        format!("{PREFIX}{}\",{rest}\n", line_checksum(rest.as_bytes()))
    };
    (first..).zip(facts).map(line).collect()
}

fn line_checksum(rest: &[u8]) -> String {
    blake3::hash(rest).to_hex()[..CHECKSUM_DIGITS].to_owned()
}

/// Opens a file for reading and writing, locked for this process. A new one can be read only by
/// its owner.
fn open_locked(path: &Path) -> Result<File, FactLogError> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let opened = options.open(path);
    let file = opened.map_err(|source| file_error(path, source))?;
    lock_named(file, path)
}

/// Locks a file for this process, if `path` still names it. Another process can have put a new file
/// there since this one was opened, and holds that one.
fn lock_named(file: File, path: &Path) -> Result<File, FactLogError> {
    let failed = |source| file_error(path, source);
    let busy = || FactLogError::Busy {
        path: path.to_owned(),
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(busy()),
        Err(TryLockError::Error(source)) => return Err(failed(source)),
    }
    match is_named(&file, path).map_err(failed)? {
        true => Ok(file),
        false => Err(busy()),
    }
}

/// Returns whether a path names an open file.
#[cfg(unix)]
fn is_named(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;

    let id = |about: fs::Metadata| (about.dev(), about.ino());
    let opened = file.metadata().map(id)?;
    match fs::metadata(path).map(id) {
        Ok(named) => Ok(named == opened),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns whether a path names an open file; other systems do not rename over an open one.
#[cfg(not(unix))]
fn is_named(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

/// Syncs the folder, so that the name of a new file is durable too.
fn sync_folder_of(path: &Path) -> Result<(), FactLogError> {
    let Some(folder) = path.parent() else {
        return Ok(());
    };
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|source| file_error(folder, source))
}

fn file_error(path: &Path, source: io::Error) -> FactLogError {
    FactLogError::File {
        path: path.to_owned(),
        source,
    }
}

/// Reads the facts of all complete lines, and returns their length in bytes.
fn parse_facts<F: DeserializeOwned>(
    path: &Path,
    format: &'static str,
    bytes: &[u8],
) -> Result<(Vec<F>, usize), FactLogError> {
    let (mut facts, mut length) = (Vec::new(), 0);
    for text in bytes.split_inclusive(|byte| *byte == b'\n') {
        let line = facts.len() as u64 + 1;
        let path = || path.to_owned();
        match fact_of(text, format, line) {
            Ok(fact) => facts.push(fact),
            Err(_) if is_torn(&bytes[length..]) => break,
            Err(LineFault::Format(found)) => {
                let path = path();
                return Err(FactLogError::Format {
                    path,
                    found,
                    format,
                });
            }
            Err(LineFault::Damaged(damage)) => {
                let path = path();
                return Err(FactLogError::Damaged { path, line, damage });
            }
        }
        length += text.len();
    }
    Ok((facts, length))
}

/// Returns whether a crash can have left `rest`, which begins with the first invalid line.
fn is_torn(rest: &[u8]) -> bool {
    rest.split_inclusive(|byte| *byte == b'\n')
        .all(|line| !line.ends_with(b"\n") || line.contains(&0))
}

/// Reads the fact of a line that should have this number.
fn fact_of<F: DeserializeOwned>(line: &[u8], format: &str, number: u64) -> Result<F, LineFault> {
    let Some(line) = line.strip_suffix(b"\n") else {
        return Err(Damage::Checksum.into());
    };
    let stated = line.strip_prefix(PREFIX.as_bytes());
    let stated = stated.and_then(|stated| stated.split_at_checked(CHECKSUM_DIGITS));
    let Some((stated, Some(rest))) =
        stated.map(|(stated, rest)| (stated, rest.strip_prefix(b"\",")))
    else {
        return Err(match number == 1 && is_of_an_older_souk(line) {
            true => LineFault::Format(None),
            false => Damage::Checksum.into(),
        });
    };
    if line_checksum(rest).as_bytes() != stated {
        return Err(Damage::Checksum.into());
    }
    let header: Header = serde_json::from_slice(line).map_err(Damage::from)?;
    if header.format != format {
        return Err(LineFault::Format(Some(header.format)));
    }
    if header.sequence != number {
        let found = header.sequence;
        return Err(Damage::Sequence { found }.into());
    }
    let body: Body<F> = serde_json::from_slice(line).map_err(Damage::from)?;
    Ok(body.fact)
}

/// Returns whether a line is a bare fact, without a format or a checksum, as older versions of souk
/// wrote it.
fn is_of_an_older_souk(line: &[u8]) -> bool {
    type Object = serde_json::Map<String, serde_json::Value>;
    let object = serde_json::from_slice::<Object>(line);
    object.is_ok_and(|object| object.contains_key("what"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "test-facts-1";

    fn open(path: &Path) -> Result<(FactLog, Vec<String>), FactLogError> {
        FactLog::open_log(path, FORMAT)
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn what_was_appended_is_read_in_its_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("facts.jsonl");
        let (mut log, facts) = open(&path).unwrap();
        assert!(facts.is_empty());
        log.append_facts(&words(&["a", "b"])).unwrap();
        log.append_facts(&words(&["c\n\0"])).unwrap();
        drop(log);
        let (mut log, facts) = open(&path).unwrap();
        assert_eq!(facts, words(&["a", "b", "c\n\0"]));
        log.append_facts(&words(&["d"])).unwrap();
        let facts: Vec<String> = FactLog::read(&path, FORMAT).unwrap();
        assert_eq!(facts, words(&["a", "b", "c\n\0", "d"]));
    }

    #[test]
    fn a_log_is_written_by_one_process_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("facts.jsonl");
        let (mut log, _) = open(&path).unwrap();
        assert!(matches!(open(&path), Err(FactLogError::Busy { .. })));
        log.replace_facts(&words(&["a"])).unwrap();
        assert!(matches!(open(&path), Err(FactLogError::Busy { .. })));
        drop(log);
        assert_eq!(open(&path).unwrap().1, words(&["a"]));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_was_replaced_since_it_was_opened_is_busy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("facts.jsonl");
        let (mut log, _) = open(&path).unwrap();
        let former = File::open(&path).unwrap();
        log.replace_facts(&words(&["a"])).unwrap();
        // Nobody holds the former file, and the log holds the new one.
        let locked = lock_named(former, &path);
        assert!(
            matches!(locked, Err(FactLogError::Busy { .. })),
            "{locked:?}"
        );
        let gone = File::open(&path).unwrap();
        drop(log);
        fs::remove_file(&path).unwrap();
        assert!(matches!(
            lock_named(gone, &path),
            Err(FactLogError::Busy { .. })
        ));
    }

    #[cfg(unix)]
    #[test]
    fn only_its_owner_reads_a_log() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("facts.jsonl");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let (mut log, _) = open(&path).unwrap();
        assert_eq!(mode(), 0o600);
        log.replace_facts(&words(&["a"])).unwrap();
        assert_eq!(mode(), 0o600);
    }

    #[test]
    fn what_a_crash_leaves_behind_the_lines_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("facts.jsonl");
        let whole = format_lines(FORMAT, 1, &words(&["a", "b"]));
        let last = format_lines(FORMAT, 3, &words(&["c"]));
        let mut tails: Vec<Vec<u8>> = (1..last.len())
            .map(|n| last.as_bytes()[..n].into())
            .collect();
        tails.push(vec![0; 4_096]);
        let mut holed = last.clone().into_bytes();
        holed[20..40].fill(0);
        tails.push([holed, last.as_bytes()[..9].to_vec()].concat());
        for tail in tails {
            fs::write(&path, [whole.as_bytes(), &tail].concat()).unwrap();
            let (mut log, facts) = open(&path).unwrap();
            assert_eq!(facts, words(&["a", "b"]));
            log.append_facts(&words(&["d"])).unwrap();
            drop(log);
            assert_eq!(open(&path).unwrap().1, words(&["a", "b", "d"]));
        }
    }

    #[test]
    fn a_line_that_is_changed_gone_or_there_twice_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("facts.jsonl");
        let line = |number, word: &str| format_lines(FORMAT, number, &words(&[word]));
        let (first, second, third) = (line(1, "a"), line(2, "b"), line(3, "c"));
        let damaged = |text: String| {
            fs::write(&path, text).unwrap();
            match open(&path) {
                Err(FactLogError::Damaged { line, damage, .. }) => (line, damage),
                other => panic!("{other:?}"),
            }
        };
        let changed = second.replace("\"b\"", "\"x\"");
        let (line, damage) = damaged(format!("{first}{changed}{third}"));
        assert!(matches!((line, damage), (2, Damage::Checksum)));
        // The last one too: it was written whole.
        let (line, _) = damaged(format!("{first}{changed}"));
        assert_eq!(line, 2);
        let (line, damage) = damaged(format!("{first}{third}"));
        assert!(matches!((line, damage), (2, Damage::Sequence { found: 3 })));
        let (line, _) = damaged(format!("{first}{first}"));
        assert_eq!(line, 2);
        let zeros = "\0".repeat(second.len());
        assert_eq!(damaged(format!("{first}{zeros}\n{third}")).0, 2);
        assert_eq!(damaged("{\"fact\":1}\n".to_owned()).0, 1);
    }

    #[test]
    fn another_format_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("facts.jsonl");
        fs::write(&path, format_lines("test-facts-9", 1, &[7])).unwrap();
        let refused = open(&path).unwrap_err().to_string();
        assert!(refused.contains("test-facts-9"), "{refused}");
        fs::write(&path, "{\"what\":\"ran\",\"lease\":3}\n").unwrap();
        let refused = open(&path).unwrap_err();
        assert!(matches!(refused, FactLogError::Format { found: None, .. }));
    }

    #[test]
    fn what_a_full_disk_took_of_a_line_is_cut_off_before_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("facts.jsonl");
        let (mut log, _) = open(&path).unwrap();
        log.append_facts(&words(&["a"])).unwrap();
        // A disk that is full takes a part of a line and fails.
        let good = std::mem::replace(&mut log.file, File::open(&path).unwrap());
        assert!(log.append_facts(&words(&["b"])).is_err());
        log.file = good;
        log.file
            .write_all(&format_lines(FORMAT, 2, &["b"]).as_bytes()[..20])
            .unwrap();
        log.append_facts(&words(&["c"])).unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            format_lines(FORMAT, 1, &["a", "c"])
        );
    }

    #[test]
    fn a_replaced_log_says_what_it_was_replaced_with_and_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("facts.jsonl");
        let (mut log, _) = open(&path).unwrap();
        log.append_facts(&words(&["a", "b", "c"])).unwrap();
        log.replace_facts(&words(&["abc"])).unwrap();
        log.append_facts(&words(&["d"])).unwrap();
        drop(log);
        assert_eq!(open(&path).unwrap().1, words(&["abc", "d"]));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_changed_byte_is_seen_and_never_read_as_another_fact() {
        let whole = format_lines(FORMAT, 1, &words(&["a", "b", "c"])).into_bytes();
        let path = Path::new("facts.jsonl");
        for at in 0..whole.len() {
            for flip in [0x01, 0x20, 0x80] {
                let mut changed = whole.clone();
                changed[at] ^= flip;
                match parse_facts::<String>(path, FORMAT, &changed) {
                    // The end of the last line: it counts as unfinished.
                    Ok((facts, _)) => {
                        assert_eq!((at, facts), (whole.len() - 1, words(&["a", "b"])));
                    }
                    Err(FactLogError::Damaged { .. }) => {}
                    Err(error) => panic!("byte {at}: {error}"),
                }
            }
        }
    }
}
