//! Holds a stream of requests at one answer, so that a test can act in the middle of the stream, no
//! matter how busy the machine is. The answer's file is a pipe, which blocks the writer.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::Market;

/// Linux's `O_NONBLOCK`.
const NONBLOCK: i32 = 0o4000;

/// How long a job may take to come to the gate.
const PATIENCE: Duration = Duration::from_secs(300);

/// An answer's file that is a pipe: whoever writes the answer waits there, and while it does no
/// request beyond the window is sent.
pub struct Gate {
    pipe: PathBuf,
}

impl Gate {
    /// A gate at an answer of a stream whose answers go to `out` and hold `y`.
    pub fn at(market: &Market, answer: usize) -> Gate {
        let folder = market.folder().join(format!("out/{answer:03}"));
        fs::create_dir_all(&folder).expect("a folder is made");
        let pipe = folder.join("y.npy");
        let made = Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("mkfifo is there").success());
        Gate { pipe }
    }

    /// Lets the stream go on; the answer is a file like the others then.
    pub fn open(self) {
        let (mut pipe, mut answer) = (self.reader().expect("it is a pipe"), Vec::new());
        let begin = Instant::now();
        // It has no end while the job is not there yet, and one once all is written.
        while pipe.read_to_end(&mut answer).is_err() || answer.is_empty() {
            assert!(begin.elapsed() < PATIENCE, "the job does not come here");
            std::thread::sleep(Duration::from_millis(5));
        }
        fs::remove_file(&self.pipe).expect("the pipe is removed");
        fs::write(&self.pipe, answer).expect("the answer is written");
    }
    fn reader(&self) -> io::Result<File> {
        let mut options = File::options();
        options.read(true).custom_flags(NONBLOCK).open(&self.pipe)
    }
}

impl Drop for Gate {
    /// Where the test fails before it is opened, the job fails at it too and does not wait for
    /// ever.
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.pipe);
        if found.is_ok_and(|found| found.file_type().is_fifo()) {
            let _reader = self.reader();
            let _ = fs::remove_file(&self.pipe);
        }
    }
}
