//! Writes a table of the files below `web`, which the gateway serves: path, content type, bytes.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Content types by file ending; the gateway serves no other files.
const KINDS: [(&str, &str); 7] = [
    ("html", "text/html; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("woff2", "font/woff2"),
];

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=web");
    let web = Path::new("web");
    let mut files = Vec::new();
    find_files(web, &mut files)?;
    files.sort();
    let mut table = "[\n".to_owned();
    for file in files {
        let ending = file.extension().and_then(|ending| ending.to_str());
        let Some((_, kind)) = KINDS.iter().find(|(known, _)| Some(*known) == ending) else {
            continue;
        };
        let below = file.strip_prefix(web).unwrap_or(&file);
        let path = match below.to_str() {
            Some("index.html") => "/".to_owned(),
            _ => format!("/{}", below.display()),
        };
        // This path belongs to the checkout that is compiled: one build folder may serve several.
        let file = format!("/{}", file.display());
        let path_of = format!("concat!(env!(\"CARGO_MANIFEST_DIR\"), {file:?})");
        writeln!(
            table,
            "    ({path:?}, {kind:?}, include_bytes!({path_of})),"
        )
        .map_err(io::Error::other)?;
    }
    table.push(']');
    let out = env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    fs::write(Path::new(&out).join("web.rs"), table)
}

fn find_files(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => find_files(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}
