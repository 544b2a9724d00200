//! Submits work to a driver of software on a thread of its own, so that a kernel that hangs cannot
//! block the caller. The wgpu driver starts it for adapters that are programs on the CPU, such as
//! Mesa's lavapipe.
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

/// Upper bound on waiting submissions: the caller waits for each before it makes the next.
const WAITING_MAX: usize = 1;

/// Commands to submit, and the channel for the result.
struct Order {
    commands: Option<CommandBuffer>,
    done: SyncSender<Result<(), GpuError>>,
}

/// A handle to the thread that submits.
pub(crate) struct Submitter {
    /// There until it is dropped.
    orders: Mutex<Option<SyncSender<Order>>>,
    thread: Option<JoinHandle<()>>,
    /// Whether a caller gave up while a submission was running.
    hangs: AtomicBool,
}

impl Submitter {
    /// Starts the thread; returns `None` where the system refuses one.
    pub fn start(device: Device, queue: Queue) -> Option<Self> {
        let (sender, orders) = sync_channel(WAITING_MAX);
        let work = move || serve_orders(&device, &queue, &orders);
        let started = thread::Builder::new().name("gpu-submit".to_owned());
        Some(Self {
            thread: Some(started.spawn(work).ok()?),
            orders: Mutex::new(Some(sender)),
            hangs: AtomicBool::new(false),
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
        let orders = {
            let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
            orders.clone().ok_or(GpuError::Lost)?
        };
        let sent = orders.send(Order { commands, done });
        sent.map_err(|_| GpuError::Lost)?;
        let answered = answer.recv_timeout(time_max);
        let hangs = matches!(answered, Err(RecvTimeoutError::Timeout));
        self.hangs.store(hangs, Ordering::Relaxed);
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
            .orders
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(thread) = self.thread.take().filter(|_| !*self.hangs.get_mut()) {
            // A thread that panicked has dropped its device.
            let _ = thread.join();
        }
    }
}

fn serve_orders(device: &Device, queue: &Queue, orders: &Receiver<Order>) {
    while let Ok(Order { commands, done }) = orders.recv() {
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
