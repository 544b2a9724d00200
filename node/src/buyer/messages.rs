//! The buyer's half of a conversation with a provider.
//!
//! A conversation may be let go at any moment: the user interrupts the job, another provider
//! fails, a part takes too long. A provider at work then hears that nobody wants the work any
//! more, rather than finding out from the log by and by; what it was done with by then is owed.

use std::time::Duration;

use futures::AsyncWriteExt;
use futures::io::WriteHalf;
use libp2p::swarm::Stream;
use tokio::runtime::Handle;

use crate::network::wire;
use crate::protocols::lease::Closing;

/// How long a provider that does not read may hold up the last word to it.
const PARTING_TIMEOUT: Duration = Duration::from_secs(2);

/// What the buyer speaks with. Dropped once work has begun, it says that the work is over.
pub(super) struct Voice {
    writer: Option<WriteHalf<Stream>>,
    has_begun: bool,
}

impl Voice {
    /// Nothing is at work yet.
    pub(super) fn new(writer: WriteHalf<Stream>) -> Voice {
        Voice {
            writer: Some(writer),
            has_begun: false,
        }
    }

    /// Where words go.
    pub(super) fn writer(&mut self) -> &mut WriteHalf<Stream> {
        self.writer.as_mut().expect("it is there until it is kept")
    }

    /// The provider was told to begin: from now on there is work to stop.
    pub(super) fn begin(&mut self) {
        self.has_begun = true;
    }

    /// The half itself, once the provider has finished.
    pub(super) fn keep(mut self) -> WriteHalf<Stream> {
        self.writer.take().expect("it is there until it is kept")
    }
}

impl Drop for Voice {
    fn drop(&mut self) {
        let Some(mut writer) = self.writer.take().filter(|_| self.has_begun) else {
            return;
        };
        // Without a runtime the process is about to end, and the log says it.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            let parting = async {
                wire::send(&mut writer, &Closing::Over).await?;
                writer.close().await.map_err(wire::WireError::from)
            };
            if let Ok(Err(error)) = tokio::time::timeout(PARTING_TIMEOUT, parting).await {
                tracing::debug!(%error, "a provider was not told that its work is over");
            }
        });
    }
}
