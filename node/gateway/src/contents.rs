//! Models and tensors that were brought, in files named by the BLAKE3 of their bytes.
//!
//! A job takes what it needs by a link of its own, so what lies here may go at any time: where
//! there is too much, what was brought first goes first.

use std::fs;
use std::io::{self, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::{Stream, StreamExt, stream};
use souk_node::memory::ContentId;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use crate::problem::{Code, Problem};

/// Where they lie, in the folder of the market.
const FOLDER: &str = "buyer/contents";

/// The largest content.
pub const CONTENT_BYTES_MAX: u64 = 2 << 30;

/// What all of them may take.
const ALL_BYTES_MAX: u64 = 16 << 30;

/// How long the next bytes may take to come.
const STALL_MAX: Duration = Duration::from_secs(30);

/// Bytes read from a file at a time.
const CHUNK_BYTES: u64 = 256 << 10;

/// Bytes that may be written before the disk is told to take them: so that little is left to wait
/// for at the end.
const UNSYNCED_BYTES: u64 = 8 << 20;

/// The ending of what has not come whole.
const PART: &str = "part";

/// The files.
#[derive(Debug)]
pub struct Contents {
    folder: PathBuf,
    /// So that two who bring the same at once do not write into one file.
    brought: AtomicU64,
    /// Held while files are counted and removed.
    counting: Mutex<()>,
}

impl Contents {
    /// Those in a market's folder; what did not come whole before is removed.
    ///
    /// # Errors
    /// When the folder cannot be made or read.
    pub fn open(market: &Path) -> io::Result<Contents> {
        let folder = market.join(FOLDER);
        fs::create_dir_all(&folder)?;
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == PART) {
                fs::remove_file(path)?;
            }
        }
        Ok(Contents {
            folder,
            brought: AtomicU64::new(0),
            counting: Mutex::default(),
        })
    }

    /// Where a content lies, if it is there.
    pub fn path(&self, id: &ContentId) -> PathBuf {
        self.folder.join(id.to_string())
    }

    /// How long a content is; none where it is not there.
    pub fn length(&self, id: &ContentId) -> Option<u64> {
        fs::metadata(self.path(id)).ok().map(|found| found.len())
    }

    /// Takes a content in as it comes; whether it is new.
    ///
    /// # Errors
    /// When it does not come, is another than it is called, is too long, or cannot be written.
    pub async fn take(&self, id: ContentId, body: Body) -> Result<bool, Problem> {
        let is_new = self.length(&id).is_none();
        let number = self.brought.fetch_add(1, Ordering::Relaxed);
        let draft = self.folder.join(format!("{id}-{number}.{PART}"));
        let came = match is_new {
            true => write(&draft, id, body).await,
            false => drain(body).await,
        };
        if is_new && came.is_ok() {
            let kept = fs::rename(&draft, self.path(&id)).map_err(Problem::unexpected);
            self.make_room();
            return kept.map(|()| true);
        }
        if is_new {
            // What stays is removed at the next start.
            let _ = fs::remove_file(&draft);
        }
        came.map(|()| false)
    }

    /// Removes what was brought first until all that is left has room.
    fn make_room(&self) {
        let _counting = self.counting.lock();
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
            if all <= ALL_BYTES_MAX {
                break;
            }
            // What stays is removed another time.
            let _ = fs::remove_file(path);
            all -= length;
        }
    }

    /// The bytes of a content.
    ///
    /// # Errors
    /// When it is not there.
    pub fn read(&self, id: &ContentId) -> Result<Bytes, Problem> {
        match fs::read(self.path(id)) {
            Ok(bytes) => Ok(bytes.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing(id)),
            Err(error) => Err(Problem::unexpected(error)),
        }
    }

    /// Some bytes of a content, as they are read.
    ///
    /// # Errors
    /// When it is not there.
    pub async fn stream(
        &self,
        id: &ContentId,
        range: Range<u64>,
    ) -> Result<impl Stream<Item = io::Result<Bytes>> + use<>, Problem> {
        let opened = File::open(self.path(id)).await;
        let mut file = opened.map_err(|_| missing(id))?;
        let sought = file.seek(SeekFrom::Start(range.start)).await;
        sought.map_err(Problem::unexpected)?;
        let left = range.end - range.start;
        Ok(stream::try_unfold(
            (file, left),
            |(mut file, left)| async move {
                if left == 0 {
                    return Ok(None);
                }
                let wanted = left.min(CHUNK_BYTES);
                let mut chunk = Vec::with_capacity(usize::try_from(wanted).unwrap_or_default());
                let read = (&mut file).take(wanted).read_to_end(&mut chunk).await?;
                if read == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(Some((Bytes::from(chunk), (file, left - read as u64))))
            },
        ))
    }
}

/// A content that is not there.
pub fn missing(id: &ContentId) -> Problem {
    let detail = format!("the content {id} is not here");
    Problem::not_found(detail, "bring it by PUT /v1/contents/{blake3}")
        .with("content", id.to_string())
}

/// The next bytes of a body.
async fn next(
    body: &mut (impl Stream<Item = Result<Bytes, axum::Error>> + Unpin),
) -> Result<Option<Bytes>, Problem> {
    let broken = |why: &str| Problem::malformed(format!("the content did not come whole: {why}"));
    match tokio::time::timeout(STALL_MAX, body.next()).await {
        Err(_) => Err(broken("nothing came for too long")),
        Ok(Some(Err(error))) => Err(broken(&error.to_string())),
        Ok(Some(Ok(bytes))) => Ok(Some(bytes)),
        Ok(None) => Ok(None),
    }
}

async fn write(path: &Path, id: ContentId, body: Body) -> Result<(), Problem> {
    let mut file = File::create(path).await.map_err(Problem::unexpected)?;
    let (mut hash, mut length) = (blake3::Hasher::new(), 0);
    let mut syncing = Syncing::default();
    let mut body = body.into_data_stream();
    while let Some(bytes) = next(&mut body).await? {
        length += bytes.len() as u64;
        if length > CONTENT_BYTES_MAX {
            return Err(too_large());
        }
        hash.update(&bytes);
        file.write_all(&bytes).await.map_err(Problem::unexpected)?;
        let going = syncing.on(&file, length).await;
        going.map_err(Problem::unexpected)?;
    }
    syncing.end().await.map_err(Problem::unexpected)?;
    let found = hash.finalize();
    if found.as_bytes() != id.as_bytes() {
        let detail = format!("the BLAKE3 of these {length} bytes is {found}, not {id}");
        let hint = "bring them under that name";
        return Err(
            Problem::new(Code::Verification, detail, hint).with("blake3", found.to_string())
        );
    }
    // A job that is begun with it must find it after a crash.
    file.sync_data().await.map_err(Problem::unexpected)
}

/// Has the disk take a file while the rest of it comes.
#[derive(Default)]
struct Syncing {
    synced: u64,
    task: Option<JoinHandle<io::Result<()>>>,
}

impl Syncing {
    /// The file has so many bytes.
    async fn on(&mut self, file: &File, length: u64) -> io::Result<()> {
        let is_busy = self.task.as_ref().is_some_and(|task| !task.is_finished());
        if is_busy || length < self.synced + UNSYNCED_BYTES {
            return Ok(());
        }
        self.end().await?;
        let file = file.try_clone().await?;
        self.synced = length;
        self.task = Some(tokio::spawn(async move { file.sync_data().await }));
        Ok(())
    }

    /// Waits for what is under way. A system tells a fault of the disk once: it is not lost here.
    async fn end(&mut self) -> io::Result<()> {
        match self.task.take() {
            Some(task) => task.await.map_err(io::Error::other)?,
            None => Ok(()),
        }
    }
}

async fn drain(body: Body) -> Result<(), Problem> {
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
    use super::*;

    fn body(text: &'static str) -> Body {
        Body::from(text)
    }

    #[tokio::test]
    async fn a_content_is_what_it_is_called_and_read_back_in_parts() {
        let home = tempfile::tempdir().unwrap();
        let contents = Contents::open(home.path()).unwrap();
        let id = ContentId::of(b"hello souk");
        assert!(contents.take(id, body("hello souk")).await.unwrap());
        assert!(!contents.take(id, body("hello souk")).await.unwrap());
        assert_eq!(contents.read(&id).unwrap(), "hello souk");
        let part = contents.stream(&id, 6..10).await.unwrap();
        let part: Vec<Bytes> = part.map(Result::unwrap).collect().await;
        assert_eq!(part.concat(), b"souk");
    }

    #[tokio::test]
    async fn what_reaches_the_disk_while_it_comes_is_whole_and_in_order() {
        let home = tempfile::tempdir().unwrap();
        let contents = Contents::open(home.path()).unwrap();
        let all: Vec<u8> = (0..=250).cycle().take(25_000_007).collect();
        let id = ContentId::of(&all);
        let pieces: Vec<_> = all.chunks(100_003).map(<[u8]>::to_vec).collect();
        let pieces = stream::iter(pieces.into_iter().map(Ok::<_, io::Error>));
        assert!(contents.take(id, Body::from_stream(pieces)).await.unwrap());
        assert!(contents.read(&id).unwrap() == all);
    }

    #[tokio::test]
    async fn other_bytes_are_refused_and_leave_nothing() {
        let home = tempfile::tempdir().unwrap();
        let contents = Contents::open(home.path()).unwrap();
        let id = ContentId::of(b"hello souk");
        let refused = contents.take(id, body("hello suok")).await.unwrap_err();
        assert_eq!(refused.code, Code::Verification);
        assert_eq!(contents.length(&id), None);
        assert_eq!(fs::read_dir(&contents.folder).unwrap().count(), 0);
    }
}
