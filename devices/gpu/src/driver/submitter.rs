//! Submits work to a software driver on a separate thread, so that a kernel that hangs cannot block
//! the caller. The wgpu driver starts it for adapters that are programs on the CPU, such as Mesa's
//! lavapipe.
//!
//! Such a driver runs a kernel within the call that submits it, and nothing ends that call before
//! the kernel does. So another thread makes the call, and the caller waits for that thread only as
//! long as it wants. If a kernel hangs, it keeps the thread and with it the device until it ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use wgpu::{CommandBuffer, Device, ErrorFilter, Queue};

use crate::error::GpuError;

/// Upper bound on waiting submissions: the caller waits for each before it makes the next, and
/// makes none after one that timed out (see `Context::give_up`).
const WAITING_MAX: usize = 1;

/// Commands to submit, and the channel for the result.
struct Submission {
    commands: Option<CommandBuffer>,
    done: SyncSender<Result<(), GpuError>>,
}

/// The thread that submits, and the channel to it.
pub(crate) struct Submitter {
    /// `None` once the submitter is being dropped, which ends the thread.
    submissions: Mutex<Option<SyncSender<Submission>>>,
    thread: Option<JoinHandle<()>>,
    /// Whether the last submission did not end in its time.
    last_timed_out: AtomicBool,
}

impl Submitter {
    /// Starts the thread; returns `None` if the system refuses to start one.
    pub fn start(device: Device, queue: Queue) -> Option<Self> {
        let (sender, submissions) = sync_channel(WAITING_MAX);
        let work = move || serve_submissions(&device, &queue, &submissions);
        let builder = thread::Builder::new().name("gpu-submit".to_owned());
        Some(Self {
            thread: Some(builder.spawn(work).ok()?),
            submissions: Mutex::new(Some(sender)),
            last_timed_out: AtomicBool::new(false),
        })
    }

    /// Submits commands, or nothing, and waits until the driver has answered. Returns `Ok(false)`
    /// if it does not answer in this time.
    pub fn submit_commands(
        &self,
        commands: Option<CommandBuffer>,
        time_max: Duration,
    ) -> Result<bool, GpuError> {
        let (done, answer) = sync_channel(1);
        let submissions = {
            let submissions = self
                .submissions
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            submissions.clone().ok_or(GpuError::Lost)?
        };
        let sent = submissions.send(Submission { commands, done });
        sent.map_err(|_| GpuError::Lost)?;
        let answered = answer.recv_timeout(time_max);
        let last_timed_out = matches!(answered, Err(RecvTimeoutError::Timeout));
        self.last_timed_out.store(last_timed_out, Ordering::Relaxed);
        match answered {
            Ok(submitted) => submitted.map(|()| true),
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => Err(GpuError::Lost),
        }
    }
}

impl Drop for Submitter {
    /// The thread must close its device before the process can end; a thread that hangs stays
    /// behind.
    fn drop(&mut self) {
        *self
            .submissions
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(thread) = self
            .thread
            .take()
            .filter(|_| !*self.last_timed_out.get_mut())
        {
            // A thread that panicked has dropped its device.
            let _ = thread.join();
        }
    }
}

fn serve_submissions(device: &Device, queue: &Queue, submissions: &Receiver<Submission>) {
    while let Ok(Submission { commands, done }) = submissions.recv() {
        // The caller can have given up waiting.
        let _ = done.send(submit_to_queue(device, queue, commands));
    }
}

/// Submits commands, and returns the driver's error if it refuses them.
pub(crate) fn submit_to_queue(
    device: &Device,
    queue: &Queue,
    commands: Option<CommandBuffer>,
) -> Result<(), GpuError> {
    let scope = device.push_error_scope(ErrorFilter::Validation);
    queue.submit(commands);
    match pollster::block_on(scope.pop()) {
        Some(error) => Err(GpuError::Driver(error.to_string())),
        None => Ok(()),
    }
}
