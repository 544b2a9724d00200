//! Tests transfers over direct channels that lie or break, to receivers that leave or stop reading,
//! and within the limits on uploads and downloads.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::content::transfers::protocol::Want;

/// Bytes a second of a sender that is far from its end when it is left.
const SLOW: u64 = 2 << 20;
/// Content that takes it long.
const LONG_BYTES: usize = 40 << 20;
/// A sender that sends lets a piece go at least this often.
const PIECE_PERIOD: Duration = Duration::from_millis(125);

/// A peer that tells over streams what content it has, and whose direct channels answer as they
/// should, send `body` of the frame wanted, and end.
async fn crooked_by_channel(
    body: impl Fn(u64) -> Vec<u8> + Send + Sync + 'static,
    of: &[u8],
) -> (Contact, DirectChannels) {
    let (key, network, contact) = bare().await;
    let outline = Outline::from_bytes(of);
    let of_streams = outline.clone();
    network.serve_protocol(PROTOCOL, 8, move |_, mut stream| {
        let outline = of_streams.clone();
        async move {
            while let Ok(request) = wire::receive::<ContentRequest>(&mut stream).await {
                let is_asked = request.wants[0].body_bytes_max >= outline.length();
                assert!(!is_asked, "content that long comes over the direct channel");
                let head = ContentAnswer::Content {
                    length: outline.length(),
                    frames: outline.frames().to_vec(),
                    follows: false,
                };
                wire::send(&mut stream, &head).await.unwrap();
            }
        }
    });
    let serve = move |_, mut channel: crate::content::direct::Channel| {
        if let Ok(Some(request)) = channel.receive_message::<ContentRequest>() {
            channel.send_message(&honest(&outline)).unwrap();
            let _ = channel.send_bytes(&body(request.wants[0].frame));
        }
    };
    let channels = DirectChannels::start(network, key, dialled(), serve)
        .await
        .unwrap();
    (contact, channels)
}

/// Waits until a sender has let nothing go for some pieces' time.
async fn until_it_sends_no_more(sender: &Tensors) {
    let (mut sent, mut since) = (sender.bytes_moved().0, Instant::now());
    while since.elapsed() < 8 * PIECE_PERIOD {
        sleep(PIECE_PERIOD / 4).await;
        if sender.bytes_moved().0 != sent {
            (sent, since) = (sender.bytes_moved().0, Instant::now());
        }
    }
}

#[tokio::test]
async fn a_corrupt_frame_over_a_channel_is_named_and_fetched_from_another() {
    let bytes = content(DIRECT_BYTES_MIN as usize + FRAME_BYTES);
    let wrong = {
        let mut wrong = bytes.to_vec();
        wrong[FRAME_BYTES + 3] ^= 1;
        wrong
    };
    let from = |of: Vec<u8>| move |frame: u64| of[frame as usize * FRAME_BYTES..].to_vec();
    let (liar, _lying) = crooked_by_channel(from(wrong), &bytes).await;
    let (other, _honest) = crooked_by_channel(from(bytes.to_vec()), &bytes).await;
    let (receiver, _) = node(DirectListen::Nowhere).await;
    for contact in [&liar, &other] {
        receiver.0.network.add_contact(contact).await.unwrap();
    }
    let (liar, other) = (liar.peer_id().unwrap(), other.peer_id().unwrap());
    let id = ContentId::for_content(&bytes);
    let corrupt = receiver.fetch_content(SCOPE, liar, id).await.unwrap_err();
    let named = matches!(corrupt, FetchError::Corrupt { peer, frame: 1, .. } if peer == liar);
    assert!(named, "{corrupt}");
    let fetched = receiver
        .fetch_from(SCOPE, &[liar, other], id)
        .await
        .unwrap();
    assert_eq!(fetched.from, Some((other, Carrier::Direct)));
    assert_eq!(fetched.bytes, bytes);
}

#[tokio::test]
async fn a_channel_that_breaks_is_gone_on_with_where_it_stopped() {
    let frames = 12;
    let bytes = content(frames * FRAME_BYTES);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (seen, right) = (asked.clone(), bytes.clone());
    // Each direct channel gives three frames and a half and breaks.
    let piece = move |frame: u64| {
        lock(&seen).push(frame);
        let start = frame as usize * FRAME_BYTES;
        let end = right.len().min(start + 7 * FRAME_BYTES / 2);
        right[start..end].to_vec()
    };
    let (sender, _channels) = crooked_by_channel(piece, &bytes).await;
    let (receiver, _) = node(DirectListen::Nowhere).await;
    receiver.0.network.add_contact(&sender).await.unwrap();
    let id = ContentId::for_content(&bytes);
    let fetched = receiver
        .fetch_content(SCOPE, sender.peer_id().unwrap(), id)
        .await
        .unwrap();
    assert_eq!(fetched.bytes, bytes);
    assert_eq!(*lock(&asked), [0, 3, 6, 9]);
}

#[tokio::test]
async fn who_leaves_a_stream_or_a_channel_is_sent_no_more() {
    let (key, network, contact) = bare().await;
    let store = Arc::new(Store::in_memory(LIMIT));
    let slow = TransferConfig {
        upload: Some(SLOW),
        ..config(dialled())
    };
    let sender = Tensors::start(network, &key, store, slow).await.unwrap();
    let id = hold(&sender, content(LONG_BYTES));
    let peer = contact.peer_id().unwrap();
    for channel in [DirectListen::Off, dialled()] {
        let (receiver, _) = node(channel).await;
        receiver.0.network.add_contact(&contact).await.unwrap();
        let before = sender.bytes_moved().0;
        let receiving = receiver.fetch_content(SCOPE, peer, id);
        let began = async {
            while sender.bytes_moved().0 == before {
                sleep(PIECE_PERIOD / 4).await;
            }
        };
        tokio::select! {
            _ = receiving => panic!("it takes 20 s"),
            () = began => {}
        }
        until_it_sends_no_more(&sender).await;
        let sent = sender.bytes_moved().0 - before;
        assert!(sent < LONG_BYTES as u64 / 2, "{sent} bytes were sent");
        assert!(lock(&receiver.0.coming).is_empty());
    }
}

#[tokio::test]
async fn messages_carry_no_contents_past_a_limit_on_uploads() {
    for upload in [None, Some(SLOW)] {
        let (key, network, _) = bare().await;
        let limits = TransferConfig {
            upload,
            ..config(DirectListen::Off)
        };
        let store = Arc::new(Store::in_memory(LIMIT));
        let sender = Tensors::start(network, &key, store, limits).await.unwrap();
        let id = sender.store().put(content(10)).unwrap();
        let carried = sender.inline_contents([id], 100).len();
        assert_eq!(carried, usize::from(upload.is_none()));
    }
}

#[tokio::test]
async fn who_reads_no_more_is_sent_no_more_than_what_lies_between() {
    let (sender, receiver, peer) = pair(DirectListen::Off, DirectListen::Off).await;
    let id = hold(&sender, content(LONG_BYTES));
    let mut stream = receiver
        .0
        .network
        .open_stream(peer, PROTOCOL)
        .await
        .unwrap();
    let want = Want {
        id,
        frame: 0,
        outline: true,
        body_bytes_max: u64::MAX,
    };
    let request = ContentRequest {
        scope: SCOPE,
        wants: vec![want],
    };
    wire::send(&mut stream, &request).await.unwrap();
    let _answer: ContentAnswer = wire::receive(&mut stream).await.unwrap();
    until_it_sends_no_more(&sender).await;
    // What yamux and the system keep of a stream that nobody reads, and a frame in hand.
    let sent = sender.bytes_moved().0;
    assert!(sent < LONG_BYTES as u64 / 2, "{sent} bytes were sent");
}

#[tokio::test]
async fn what_may_be_received_in_a_second_is_kept_on_streams_and_channels() {
    let seconds = 2;
    for channel in [DirectListen::Off, dialled()] {
        let (sender, contact) = node(channel).await;
        let bytes = content(DIRECT_BYTES_MIN as usize + 1);
        let id = hold(&sender, bytes.clone());
        let limited = TransferConfig {
            download: Some(bytes.len() as u64 / seconds),
            ..config(DirectListen::Nowhere)
        };
        let (receiver, _) = node_with(Store::in_memory(LIMIT), limited).await;
        receiver.0.network.add_contact(&contact).await.unwrap();
        let began = Instant::now();
        let fetching = receiver.fetch_content(SCOPE, contact.peer_id().unwrap(), id);
        let fetched = timeout(Duration::from_secs(60), fetching).await.unwrap();
        assert_eq!(fetched.unwrap().bytes, bytes);
        // What may go at once after a pause is not much.
        let least = Duration::from_secs(seconds).mul_f64(0.9);
        assert!(began.elapsed() > least, "{:?}", began.elapsed());
    }
}
