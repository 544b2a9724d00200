//! `souk testnet logs`: shows the standard error of the nodes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use souk_folder::market_file::MarketFile;
use souk_testnet::cluster::LOG;
use souk_testnet::layout;

use crate::args::{LogsArgs, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::from_config;
use crate::{show, stop};

/// Period of the reads of the files.
const POLL_PERIOD: Duration = Duration::from_millis(200);

/// Largest number of bytes that one call reads from a file.
const READ_MAX: u64 = 1 << 20;

/// A node's log, and the position up to which it is printed.
struct Log {
    name: String,
    path: PathBuf,
    read: u64,
    /// The beginning of a line whose end is not written yet.
    partial_line: String,
}

/// Prints the last lines of each log, and further ones if wanted.
pub async fn run(folder: &Path, output: Output, args: &LogsArgs) -> Outcome {
    MarketFile::read_nearest(folder).map_err(from_config)?;
    let known = layout::node_names(folder);
    if let Some(name) = args.nodes.iter().find(|name| !known.contains(name)) {
        let cause = format!("no node of {} is called {name}", folder.display());
        let hint = format!("its nodes are {}", known.join(", "));
        return Err(Failure::new(Kind::Input, cause, hint));
    }
    let chosen = known
        .into_iter()
        .filter(|name| args.nodes.is_empty() || args.nodes.contains(name));
    let mut logs: Vec<Log> = chosen.map(|name| Log::for_node(folder, name)).collect();
    for log in &mut logs {
        for line in log.last_lines(args.lines) {
            print_log_line(output, &log.name, &line);
        }
    }
    if !args.follow {
        return Ok(());
    }
    let mut stops = stop::Requests::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep(POLL_PERIOD) => {}
            () = stops.next() => return Ok(()),
        }
        for log in &mut logs {
            for line in log.read_new_lines() {
                print_log_line(output, &log.name, &line);
            }
        }
    }
}

fn print_log_line(output: Output, name: &str, line: &str) {
    let facts = json!({ "node": name, "line": line });
    show::print_result(output, &facts, &format!("{name:<12} {line}"));
}

impl Log {
    fn for_node(folder: &Path, name: String) -> Log {
        Log {
            path: folder.join(&name).join(LOG),
            name,
            read: 0,
            partial_line: String::new(),
        }
    }

    /// Returns the last `count` lines.
    fn last_lines(&mut self, count: usize) -> Vec<String> {
        let length = self.path.metadata().map_or(0, |file| file.len());
        self.read = length.saturating_sub(READ_MAX);
        let lines = self.read_new_lines();
        lines[lines.len().saturating_sub(count)..].to_vec()
    }

    /// Returns the new lines. A missing file counts as empty.
    fn read_new_lines(&mut self) -> Vec<String> {
        let Ok(bytes) = self.read_bytes() else {
            return Vec::new();
        };
        self.partial_line += &String::from_utf8_lossy(&bytes);
        let whole = self.partial_line.rfind('\n').map_or(0, |end| end + 1);
        let rest = self.partial_line.split_off(whole);
        let lines = std::mem::replace(&mut self.partial_line, rest);
        lines.lines().map(str::to_owned).collect()
    }

    fn read_bytes(&mut self) -> io::Result<Vec<u8>> {
        let mut file = File::open(&self.path)?;
        // A restarted node truncates its file.
        if file.metadata()?.len() < self.read {
            self.read = 0;
        }
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::new();
        self.read += file.take(READ_MAX).read_to_end(&mut bytes)? as u64;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_log_is_printed_from_its_last_lines_on_and_each_line_whole_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Log::for_node(folder.path(), "provider-1".to_owned());
        assert!(log.last_lines(10).is_empty(), "it has no file yet");
        let home = folder.path().join("provider-1");
        fs::create_dir(&home).unwrap();
        let write = |text: &str| fs::write(home.join(LOG), text).unwrap();
        write("one\ntwo\nthree\nfo");
        assert_eq!(log.last_lines(2), ["two", "three"]);
        write("one\ntwo\nthree\nfour\n");
        assert_eq!(log.read_new_lines(), ["four"]);
        assert!(log.read_new_lines().is_empty());
        write("again\n");
        assert_eq!(log.read_new_lines(), ["again"], "begun anew");
    }
}
