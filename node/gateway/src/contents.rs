//! Stores uploaded models and tensors, in files named by the BLAKE3 of their bytes.
//!
//! A job links the contents that it needs into its own folder, so the gateway can remove any file
//! here at any time. If the files exceed their limit, it removes the oldest uploads first.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::{Stream, StreamExt};
use souk_node::memory::ContentId;
use tokio::fs::File;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinHandle;

use crate::file_stream;
use crate::problem::{Code, Problem};

/// Folder of the contents, relative to the folder of the market.
const FOLDER: &str = "buyer/contents";

/// Largest size of a content, in bytes.
pub const CONTENT_BYTES_MAX: u64 = 2 << 30;

/// Largest size of all contents together, in bytes.
const TOTAL_BYTES_MAX: u64 = 16 << 30;

/// Longest pause between two chunks of an upload.
const STALL_MAX: Duration = Duration::from_secs(30);

/// Unsynced bytes after which the gateway starts to sync the file: so the wait at the end is short.
const UNSYNCED_BYTES: u64 = 8 << 20;

/// File ending of an incomplete upload.
const DRAFT_EXTENSION: &str = "part";

/// The folder of uploaded contents.
#[derive(Debug)]
pub struct Contents {
    folder: PathBuf,
    /// Number of uploads: gives each draft a name of its own, so that two uploads of one content do
    /// not write to one file.
    upload_count: AtomicU64,
    /// A thread must hold this while it counts and removes files.
    eviction_lock: Mutex<()>,
}

impl Contents {
    /// Opens the contents of a market's folder and removes incomplete uploads.
    ///
    /// # Errors
    /// Fails if the folder cannot be created or read.
    pub fn open(market: &Path) -> io::Result<Contents> {
        let folder = market.join(FOLDER);
        fs::create_dir_all(&folder)?;
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|ending| ending == DRAFT_EXTENSION)
            {
                fs::remove_file(path)?;
            }
        }
        Ok(Contents {
            folder,
            upload_count: AtomicU64::new(0),
            eviction_lock: Mutex::default(),
        })
    }

    /// Returns the path of a content. The file may not exist.
    pub fn path(&self, id: &ContentId) -> PathBuf {
        self.folder.join(id.to_string())
    }

    /// Returns the length of a content in bytes, or `None` if it does not exist.
    pub fn content_length(&self, id: &ContentId) -> Option<u64> {
        fs::metadata(self.path(id)).ok().map(|found| found.len())
    }

    /// Stores an upload and returns whether the content is new. If it is not, the bytes are dropped
    /// unchecked.
    ///
    /// # Errors
    /// Fails if the body breaks off, does not match its name, is too long, or cannot be written.
    pub async fn store_upload(&self, id: ContentId, body: Body) -> Result<bool, Problem> {
        let is_new = self.content_length(&id).is_none();
        let number = self.upload_count.fetch_add(1, Ordering::Relaxed);
        let draft = self.folder.join(format!("{id}-{number}.{DRAFT_EXTENSION}"));
        let came = match is_new {
            true => write(&draft, id, body).await,
            false => drain_body(body).await,
        };
        if is_new && came.is_ok() {
            let kept = fs::rename(&draft, self.path(&id)).map_err(Problem::unexpected_failure);
            self.evict_oldest();
            return kept.map(|()| true);
        }
        if is_new {
            // If this fails, the next start will remove the draft.
            let _ = fs::remove_file(&draft);
        }
        came.map(|()| false)
    }

    /// Removes the oldest contents until the rest fits the limit.
    fn evict_oldest(&self) {
        let _counting = self.eviction_lock.lock();
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut files: Vec<_> = entries
            .filter_map(|entry| {
                let found = entry.metadata().ok()?;
                Some((found.modified().ok()?, found.len(), entry.path()))
            })
            .collect();
        files.sort();
        let mut all: u64 = files.iter().map(|(_, length, _)| length).sum();
        for (_, length, path) in files {
            if all <= TOTAL_BYTES_MAX {
                break;
            }
            // If this fails, a later call will remove the file.
            let _ = fs::remove_file(path);
            all -= length;
        }
    }

    /// Returns the bytes of a content.
    ///
    /// # Errors
    /// Fails if the content does not exist.
    pub fn read(&self, id: &ContentId) -> Result<Bytes, Problem> {
        match fs::read(self.path(id)) {
            Ok(bytes) => Ok(bytes.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing_content(id)),
            Err(error) => Err(Problem::unexpected_failure(error)),
        }
    }

    /// Streams a range of a content's bytes from the file.
    ///
    /// # Errors
    /// Fails if the content does not exist.
    pub async fn stream_range(
        &self,
        id: &ContentId,
        range: Range<u64>,
    ) -> Result<impl Stream<Item = io::Result<Bytes>> + use<>, Problem> {
        let opened = File::open(self.path(id)).await;
        let file = opened.map_err(|_| missing_content(id))?;
        let streaming = file_stream::stream_range(file, range).await;
        streaming.map_err(Problem::unexpected_failure)
    }
}

/// Returns the problem of a content that does not exist.
pub fn missing_content(id: &ContentId) -> Problem {
    let detail = format!("the content {id} is not here");
    Problem::not_found(detail, "upload it with PUT /v1/contents/{blake3}")
        .with("content", id.to_string())
}

/// Returns the next bytes of a body; fails if they do not arrive in time.
async fn next(
    body: &mut (impl Stream<Item = Result<Bytes, axum::Error>> + Unpin),
) -> Result<Option<Bytes>, Problem> {
    let broken =
        |why: &str| Problem::malformed_input(format!("the content did not come whole: {why}"));
    match tokio::time::timeout(STALL_MAX, body.next()).await {
        Err(_) => Err(broken("nothing came for too long")),
        Ok(Some(Err(error))) => Err(broken(&error.to_string())),
        Ok(Some(Ok(bytes))) => Ok(Some(bytes)),
        Ok(None) => Ok(None),
    }
}

async fn write(path: &Path, id: ContentId, body: Body) -> Result<(), Problem> {
    let mut file = File::create(path)
        .await
        .map_err(Problem::unexpected_failure)?;
    let (mut hash, mut length) = (blake3::Hasher::new(), 0);
    let mut syncing = FileSync::default();
    let mut body = body.into_data_stream();
    while let Some(bytes) = next(&mut body).await? {
        length += bytes.len() as u64;
        if length > CONTENT_BYTES_MAX {
            return Err(too_large());
        }
        hash.update(&bytes);
        file.write_all(&bytes)
            .await
            .map_err(Problem::unexpected_failure)?;
        let going = syncing.sync_if_due(&file, length).await;
        going.map_err(Problem::unexpected_failure)?;
    }
    syncing
        .await_sync()
        .await
        .map_err(Problem::unexpected_failure)?;
    let found = hash.finalize();
    if found.as_bytes() != id.as_bytes() {
        let detail = format!("the BLAKE3 of these {length} bytes is {found}, not {id}");
        let hint = "upload them under that name";
        return Err(
            Problem::new(Code::Verification, detail, hint).with("blake3", found.to_string())
        );
    }
    // A job that begins with this content must find it after a crash.
    file.sync_data().await.map_err(Problem::unexpected_failure)
}

/// Syncs a file to disk while the rest of it arrives.
#[derive(Default)]
struct FileSync {
    synced: u64,
    task: Option<JoinHandle<io::Result<()>>>,
}

impl FileSync {
    /// Starts a sync if the file, now of `length` bytes, has enough unsynced bytes.
    async fn sync_if_due(&mut self, file: &File, length: u64) -> io::Result<()> {
        let is_busy = self.task.as_ref().is_some_and(|task| !task.is_finished());
        if is_busy || length < self.synced + UNSYNCED_BYTES {
            return Ok(());
        }
        self.await_sync().await?;
        let file = file.try_clone().await?;
        self.synced = length;
        self.task = Some(tokio::spawn(async move { file.sync_data().await }));
        Ok(())
    }

    /// Waits for the running sync. The system reports a disk fault once, so this passes it on.
    async fn await_sync(&mut self) -> io::Result<()> {
        match self.task.take() {
            Some(task) => task.await.map_err(io::Error::other)?,
            None => Ok(()),
        }
    }
}

async fn drain_body(body: Body) -> Result<(), Problem> {
    let (mut body, mut length) = (body.into_data_stream(), 0);
    while let Some(bytes) = next(&mut body).await? {
        length += bytes.len() as u64;
        if length > CONTENT_BYTES_MAX {
            return Err(too_large());
        }
    }
    Ok(())
}

fn too_large() -> Problem {
    let detail = format!("the content is longer than {CONTENT_BYTES_MAX} bytes");
    Problem::new(
        Code::TooLarge,
        detail,
        "keep large weights as external data of several files",
    )
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    fn body(text: &'static str) -> Body {
        Body::from(text)
    }

    #[tokio::test]
    async fn a_content_is_what_it_is_called_and_read_back_in_parts() {
        let home = tempfile::tempdir().unwrap();
        let contents = Contents::open(home.path()).unwrap();
        let id = ContentId::for_content(b"hello souk");
        assert!(contents.store_upload(id, body("hello souk")).await.unwrap());
        assert!(!contents.store_upload(id, body("hello souk")).await.unwrap());
        assert_eq!(contents.read(&id).unwrap(), "hello souk");
        let part = contents.stream_range(&id, 6..10).await.unwrap();
        let part: Vec<Bytes> = part.map(Result::unwrap).collect().await;
        assert_eq!(part.concat(), b"souk");
    }

    #[tokio::test]
    async fn what_reaches_the_disk_while_it_comes_is_whole_and_in_order() {
        let home = tempfile::tempdir().unwrap();
        let contents = Contents::open(home.path()).unwrap();
        let all: Vec<u8> = (0..=250).cycle().take(25_000_007).collect();
        let id = ContentId::for_content(&all);
        let pieces: Vec<_> = all.chunks(100_003).map(<[u8]>::to_vec).collect();
        let pieces = stream::iter(pieces.into_iter().map(Ok::<_, io::Error>));
        assert!(
            contents
                .store_upload(id, Body::from_stream(pieces))
                .await
                .unwrap()
        );
        assert!(contents.read(&id).unwrap() == all);
    }

    #[tokio::test]
    async fn other_bytes_are_refused_and_leave_nothing() {
        let home = tempfile::tempdir().unwrap();
        let contents = Contents::open(home.path()).unwrap();
        let id = ContentId::for_content(b"hello souk");
        let refused = contents
            .store_upload(id, body("hello suok"))
            .await
            .unwrap_err();
        assert_eq!(refused.code, Code::Verification);
        assert_eq!(contents.content_length(&id), None);
        assert_eq!(fs::read_dir(&contents.folder).unwrap().count(), 0);
    }
}
