//! `souk debug bundle`: writes the facts for a fault report into one file that its sender can read.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use souk_node::buyer::Journal;
use souk_testnet::cluster::LOG;

use super::submit::JOBS_FOLDER;
use super::{config, doctor};
use crate::args::GlobalArgs;
use crate::failure::{Failure, Kind, Outcome};
use crate::show;

/// Bytes from the end of each log.
const LOG_BYTES: u64 = 64 << 10;

/// Depth to which the bundle lists files.
const DEPTH: usize = 3;

/// Largest number of listed files.
const FILES_MAX: usize = 2_000;

/// Writes the bundle.
pub async fn write_bundle(global: &GlobalArgs, folder: &Path, out: &Path) -> Outcome {
    let settings = config::collect_settings(global, folder);
    let settings = settings.map_or_else(|why| json!({ "unreadable": why.cause }), |it| json!(it));
    let mut files = Vec::new();
    list_files(folder, DEPTH, &mut files);
    let jobs = Journal::list_records(&folder.join(JOBS_FOLDER));
    let report = json!({
        "souk": env!("CARGO_PKG_VERSION"),
        "system": {
            "os": std::env::consts::OS,
            "architecture": std::env::consts::ARCH,
            "kernel": fs::read_to_string("/proc/version").unwrap_or_default().trim(),
            "processors": std::thread::available_parallelism().map_or(0, usize::from),
        },
        "findings": doctor::run_checks(folder).await,
        "settings": settings,
        "files": files.iter().map(|(path, size)| json!([path, size])).collect::<Vec<_>>(),
        "logs": log_tails(&files),
        "jobs": jobs,
    });
    let text = serde_json::to_string_pretty(&report).unwrap_or_default();
    fs::write(out, text + "\n").map_err(|error| {
        let cause = format!("cannot write {}: {error}", out.display());
        Failure::new(Kind::State, cause, "give another file with --out")
    })?;
    let text = format!(
        "wrote {0}; look through it before you send it: paths, names of models and addresses of \
         peers are in it",
        out.display()
    );
    show::print_result(global.output(), &json!({ "file": out }), &text);
    Ok(())
}

/// Lists the files below a folder with their sizes, by name.
fn list_files(folder: &Path, depth: usize, found: &mut Vec<(PathBuf, u64)>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if found.len() >= FILES_MAX {
            return;
        }
        let Ok(about) = path.symlink_metadata() else {
            continue;
        };
        if about.is_dir() && depth > 1 {
            list_files(&path, depth - 1, found);
        } else {
            found.push((path, about.len()));
        }
    }
}

/// Returns the ends of the logs among the files.
fn log_tails(files: &[(PathBuf, u64)]) -> Vec<Value> {
    let is_log = |path: &&PathBuf| {
        path.file_name()
            .is_some_and(|name| name == LOG || name == "testnet.log")
    };
    let paths = files.iter().map(|(path, _)| path).filter(is_log);
    let told =
        paths.map(|path| json!({ "file": path, "end": read_tail(path).unwrap_or_default() }));
    told.collect()
}

fn read_tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
