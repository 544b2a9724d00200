//! Sends and receives the messages between a provider and a sandbox: frames both ways, with shared
//! memory alongside.
//!
//! A frame consists of its length, the number of pieces of shared memory that come with it, and the
//! message. The provider does not trust the sandbox: it must bound each message, and allocate
//! memory only as bytes arrive.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as BlockingStream;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use souk_folder::limits::OUTPUTS_MIB;
use souk_host::sealed_memory::SealedMemory;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::messages::{SandboxAnswer, SandboxOrder};

/// Bytes of a frame's header: two numbers of 32 bits.
const HEAD_BYTES: usize = 8;

/// The longest message of a sandbox: reports and timelines; tensors follow it.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// The largest output of a run: the default limit of one lease's outputs.
const OUTPUT_BYTES_MAX: u64 = OUTPUTS_MIB << 20;

/// Memory is allocated in steps of this size as bytes arrive.
const STEP_BYTES: usize = 1 << 20;

/// Space for the descriptors of a message, with the kernel's headers.
const ANCILLARY_BYTES: usize = 1024;

/// The provider's end for orders.
#[derive(Debug)]
pub(super) struct Orders {
    stream: OwnedWriteHalf,
}

/// The provider's end for answers.
#[derive(Debug)]
pub(super) struct Answers {
    stream: OwnedReadHalf,
}

/// The sandbox's end.
#[derive(Debug)]
pub(super) struct SandboxEnd {
    stream: BlockingStream,
}

/// Creates a channel, with the end that the sandbox starts with.
pub(super) fn new_pair() -> io::Result<(Orders, Answers, OwnedFd)> {
    let (near, far) = BlockingStream::pair()?;
    near.set_nonblocking(true)?;
    let (reader, writer) = UnixStream::from_std(near)?.into_split();
    let (orders, answers) = (Orders { stream: writer }, Answers { stream: reader });
    Ok((orders, answers, far.into()))
}

impl Orders {
    /// Sends an order with its shared memory.
    pub(super) async fn send_order(
        &mut self,
        order: &SandboxOrder,
        files: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let message = encode_message(order)?;
        let head = encode_head(message.len(), files.len())?;
        let stream: &UnixStream = self.stream.as_ref();
        let put = || {
            let mut room = [MaybeUninit::uninit(); ANCILLARY_BYTES];
            let mut ancillary = SendAncillaryBuffer::new(&mut room);
            if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let head = [IoSlice::new(&head)];
            Ok(sendmsg(
                stream.as_fd(),
                &head,
                &mut ancillary,
                SendFlags::NOSIGNAL,
            )?)
        };
        let sent = stream.async_io(Interest::WRITABLE, put).await?;
        self.stream.write_all(&head[sent..]).await?;
        self.stream.write_all(&message).await
    }
}

impl Answers {
    /// Receives the sandbox's next message. Returns [`io::ErrorKind::TimedOut`] if the sandbox is
    /// silent for that long.
    pub(super) async fn receive_answer(&mut self, silence: Duration) -> io::Result<SandboxAnswer> {
        let head = self.receive_bytes(HEAD_BYTES as u64, silence).await?;
        let length = u32::from_le_bytes(head[..4].try_into().expect("a head has eight bytes"));
        if length as usize > ANSWER_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let message = self.receive_bytes(u64::from(length), silence).await?;
        postcard::from_bytes(&message).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// Receives this number of bytes.
    pub(super) async fn receive_bytes(
        &mut self,
        length: u64,
        silence: Duration,
    ) -> io::Result<Bytes> {
        let length = match usize::try_from(length) {
            Ok(length) if length as u64 <= OUTPUT_BYTES_MAX => length,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        let mut bytes = BytesMut::new();
        while bytes.len() < length {
            let step = STEP_BYTES.min(length - bytes.len());
            bytes.reserve(step);
            let mut room = (&mut self.stream).take(step as u64);
            let read = tokio::time::timeout(silence, room.read_buf(&mut bytes)).await;
            if read.map_err(|_| io::ErrorKind::TimedOut)?? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(bytes.freeze())
    }
}

impl SandboxEnd {
    pub(super) fn new(stream: BlockingStream) -> SandboxEnd {
        SandboxEnd { stream }
    }

    /// Duplicates the handle of this end.
    pub(super) fn try_clone(&self) -> io::Result<SandboxEnd> {
        let stream = self.stream.try_clone()?;
        Ok(SandboxEnd { stream })
    }

    /// Receives the provider's next order, with its shared memory.
    pub(super) fn receive_order(&mut self) -> io::Result<(SandboxOrder, Vec<SealedMemory>)> {
        let (mut head, mut filled, mut files) = ([0; HEAD_BYTES], 0, Vec::new());
        while filled < HEAD_BYTES {
            let mut room = [MaybeUninit::uninit(); ANCILLARY_BYTES];
            let mut ancillary = RecvAncillaryBuffer::new(&mut room);
            let mut rest = [IoSliceMut::new(&mut head[filled..])];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let received = recvmsg(&self.stream, &mut rest, &mut ancillary, flags)?;
            if received.bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            filled += received.bytes;
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(sent) = message {
                    files.extend(sent);
                }
            }
        }
        let length = u32::from_le_bytes(head[..4].try_into().expect("a head has eight bytes"));
        let mut message = vec![0; length as usize];
        self.stream.read_exact(&mut message)?;
        let order = postcard::from_bytes(&message).map_err(|_| io::ErrorKind::InvalidData)?;
        let sealed = files.into_iter().map(SealedMemory::from_fd);
        Ok((order, sealed.collect::<io::Result<_>>()?))
    }

    /// Sends an answer, and then its blobs.
    pub(super) fn send_answer(
        &mut self,
        answer: &SandboxAnswer,
        blobs: &[Bytes],
    ) -> io::Result<()> {
        let message = encode_message(answer)?;
        self.stream.write_all(&encode_head(message.len(), 0)?)?;
        self.stream.write_all(&message)?;
        blobs
            .iter()
            .try_for_each(|blob| self.stream.write_all(blob))
    }
}

fn encode_head(length: usize, files: usize) -> io::Result<[u8; HEAD_BYTES]> {
    let number = |number: usize| u32::try_from(number).map_err(|_| io::ErrorKind::InvalidInput);
    let numbers = (u64::from(number(files)?) << 32) | u64::from(number(length)?);
    Ok(numbers.to_le_bytes())
}

fn encode_message(message: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(message).map_err(|_| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn orders_cross_with_their_memory_and_answers_with_their_blobs() {
        let (mut orders, mut answers, far) = new_pair().unwrap();
        let mut far = SandboxEnd::new(far.into());
        let sealed = SealedMemory::new(&[b"weights"]).unwrap();
        let id = souk_memory::ContentId::for_content(b"weights");
        orders
            .send_order(&SandboxOrder::Prepare(7, id), &[sealed.file()])
            .await
            .unwrap();
        let answering = std::thread::spawn(move || {
            let (order, shared) = far.receive_order().unwrap();
            assert!(matches!(order, SandboxOrder::Prepare(7, found) if found == id));
            assert_eq!(&shared[0].map_bytes().unwrap()[..], b"weights");
            let blob = Bytes::from_static(b"output");
            far.send_answer(&SandboxAnswer::Prepared(7, Ok(())), &[blob])
                .unwrap();
        });
        let answer = answers.receive_answer(PATIENCE).await.unwrap();
        assert!(matches!(answer, SandboxAnswer::Prepared(7, Ok(()))));
        assert_eq!(
            &answers.receive_bytes(6, PATIENCE).await.unwrap()[..],
            b"output"
        );
        answering.join().unwrap();
        let over = answers.receive_answer(PATIENCE).await.unwrap_err();
        assert_eq!(over.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn a_sandbox_that_claims_too_much_is_not_believed() {
        let (_orders, mut answers, far) = new_pair().unwrap();
        let mut far = BlockingStream::from(far);
        far.write_all(&[0xff; 8]).unwrap();
        let refused = answers.receive_answer(PATIENCE).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        assert!(answers.receive_bytes(u64::MAX, PATIENCE).await.is_err());
    }
}
