//! Tests transfers of content between nodes of this process: by stream, direct channel and relay,
//! in the order of urgency, and from peers that lie.

mod faults;
mod parties;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use futures::AsyncWriteExt;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use souk_folder::contact::Contact;
use souk_market::JobId;
use souk_memory::{FRAME_BYTES, Outline, StoreConfig};
use souk_roles::access::Readers;

use super::protocol::ContentAnswer;
use super::*;
use crate::content::direct::DirectListen;
use crate::content::direct::tests::{announce, dead_address, silent_address};
use crate::tests::listening_at;

const LIMIT: u64 = 64 << 20;

/// The job that everything is of, but where it is said otherwise.
const SCOPE: Scope = Scope {
    buyer: AccountKey([0; 32]),
    job: JobId([0; 32]),
};

/// A key out of few, which are all known.
fn drawn() -> NodeKey {
    static DRAWN: AtomicU8 = AtomicU8::new(0);
    NodeKey::from_secret([DRAWN.fetch_add(1, Ordering::Relaxed); 32])
}

/// Has a node hold a content, and serve it to all whose keys were drawn.
fn hold(node: &Tensors, bytes: Bytes) -> ContentId {
    static EVERYBODY: LazyLock<Readers> = LazyLock::new(|| {
        let account = |n| AccountKey(NodeKey::from_secret([n; 32]).public_key());
        Readers::new((0..=u8::MAX).map(account).collect())
    });
    let id = node.store().put(bytes).unwrap();
    give(node, SCOPE, &EVERYBODY, id);
    id
}

/// Has a node serve a content to some.
fn give(node: &Tensors, scope: Scope, to: &Readers, id: ContentId) {
    node.access().begin_lease(scope);
    node.access().grant_contents(scope, to, &[id]);
}

/// A node of the network that takes part in nothing yet.
async fn bare() -> (NodeKey, Network, Contact) {
    bare_with(drawn()).await
}

async fn bare_with(key: NodeKey) -> (NodeKey, Network, Contact) {
    let listen = Some("/ip4/127.0.0.1/tcp/0".parse().unwrap());
    let config = crate::NetworkConfig {
        listen,
        ..Default::default()
    };
    let network = Network::start(&key, config).await.unwrap();
    let addresses = network.own_addresses().await;
    let account = key.public_key();
    (key, network, Contact { account, addresses })
}

fn config(channel: DirectListen) -> TransferConfig {
    TransferConfig {
        bytes_max: LIMIT,
        channel,
        ..TransferConfig::default()
    }
}

fn dialled() -> DirectListen {
    DirectListen::At("127.0.0.1:0".parse().unwrap())
}

async fn node_with(store: Store, config: TransferConfig) -> (Tensors, Contact) {
    let (key, network, contact) = bare().await;
    let tensors = Tensors::start(network, &key, Arc::new(store), config).await;
    (tensors.unwrap(), contact)
}

async fn node(channel: DirectListen) -> (Tensors, Contact) {
    node_with(Store::in_memory(LIMIT), config(channel)).await
}

/// A sender, a receiver that knows it, and the sender's peer id.
async fn pair(sender: DirectListen, receiver: DirectListen) -> (Tensors, Tensors, PeerId) {
    let (sender, contact) = node(sender).await;
    let (receiver, _) = node(receiver).await;
    receiver.0.network.add_contact(&contact).await.unwrap();
    (sender, receiver, contact.peer_id().unwrap())
}

fn content(length: usize) -> Bytes {
    Bytes::from((0..length).map(|n| (n / 5) as u8).collect::<Vec<_>>())
}

#[tokio::test]
async fn content_travels_once() {
    let (sender, receiver, peer) = pair(DirectListen::Off, DirectListen::Off).await;
    let bytes = content(3_000_001);
    let id = hold(&sender, bytes.clone());
    let fetched = receiver.fetch_content(SCOPE, peer, id).await.unwrap();
    assert_eq!(fetched.bytes, bytes);
    assert_eq!(fetched.moved, bytes.len() as u64);
    assert_eq!(fetched.from, Some((peer, Carrier::Stream)));
    assert_eq!(
        receiver.fetch_content(SCOPE, peer, id).await.unwrap().moved,
        0
    );
}

#[tokio::test]
async fn content_beyond_the_bound_of_its_reader_does_not_come() {
    let (sender, receiver, peer) = pair(DirectListen::Off, DirectListen::Off).await;
    let id = hold(&sender, content(3_000_001));
    let from = [peer];
    let fetch = |bytes_max| receiver.fetch_bounded(Urgency::Awaited, SCOPE, &from, (id, bytes_max));
    let refused = fetch(3_000_000).await.unwrap_err();
    assert!(
        matches!(
            refused,
            FetchError::TooLong {
                limit: 3_000_000,
                ..
            }
        ),
        "{refused}"
    );
    assert_eq!(fetch(3_000_001).await.unwrap().moved, 3_000_001);
}

/// A process of a key, which serves no direct channel.
async fn process_of(key: NodeKey) -> (Tensors, Contact) {
    let (key, network, contact) = bare_with(key).await;
    let store = Arc::new(Store::in_memory(LIMIT));
    let tensors = Tensors::start(network, &key, store, config(DirectListen::Off)).await;
    (tensors.unwrap(), contact)
}

#[tokio::test]
async fn what_one_process_of_a_key_lacks_is_asked_of_the_other() {
    let key = drawn();
    let (first, contact) = process_of(key.clone()).await;
    let (second, _) = process_of(key).await;
    let (receiver, own) = node(DirectListen::Off).await;
    let peer = contact.peer_id().unwrap();
    receiver.0.network.add_contact(&contact).await.unwrap();
    let known = hold(&first, content(10));
    receiver.fetch_content(SCOPE, peer, known).await.unwrap();
    second.0.network.add_contact(&own).await.unwrap();
    let opened = second
        .0
        .network
        .open_stream(own.peer_id().unwrap(), PROTOCOL)
        .await;
    drop(opened.unwrap());
    for (holder, length) in [(&second, 3_000_001), (&first, 3_000_002)] {
        let id = hold(holder, content(length));
        let fetched = receiver.fetch_content(SCOPE, peer, id).await.unwrap();
        assert_eq!(fetched.from, Some((peer, Carrier::Stream)));
    }
    let nobodys = ContentId::for_content(b"nobody has it");
    let missing = receiver
        .fetch_content(SCOPE, peer, nobodys)
        .await
        .unwrap_err();
    assert!(matches!(missing, FetchError::Missing { .. }), "{missing}");
}

#[tokio::test]
async fn two_who_want_the_same_at_once_move_it_once() {
    let (sender, receiver, peer) = pair(DirectListen::Off, DirectListen::Off).await;
    let id = hold(&sender, content(5_000_000));
    let both = tokio::join!(
        receiver.fetch_content(SCOPE, peer, id),
        receiver.fetch_content(SCOPE, peer, id)
    );
    let moved = both.0.unwrap().moved + both.1.unwrap().moved;
    assert_eq!(moved, 5_000_000);
    assert!(lock(&receiver.0.coming).is_empty());
}

#[tokio::test]
async fn large_content_takes_the_channel_whoever_can_be_dialled() {
    for (ours, theirs) in [
        (dialled(), DirectListen::Nowhere),
        (DirectListen::Nowhere, dialled()),
        (dialled(), dialled()),
    ] {
        let (sender, receiver, peer) = pair(theirs, ours).await;
        let bytes = content(DIRECT_BYTES_MIN as usize + 77);
        let id = hold(&sender, bytes.clone());
        let fetched = receiver.fetch_content(SCOPE, peer, id).await.unwrap();
        assert_eq!(fetched.from, Some((peer, Carrier::Direct)));
        assert_eq!(fetched.bytes, bytes);
        // The second takes the direct channel that is there.
        let again = hold(&sender, content(DIRECT_BYTES_MIN as usize + 78));
        let fetched = receiver.fetch_content(SCOPE, peer, again).await.unwrap();
        assert_eq!(fetched.from, Some((peer, Carrier::Direct)));
    }
}

#[tokio::test]
async fn without_a_channel_large_content_goes_over_the_stream() {
    for (ours, theirs) in [
        (DirectListen::Nowhere, DirectListen::Nowhere),
        (dialled(), DirectListen::Off),
        (DirectListen::Off, dialled()),
    ] {
        let (sender, receiver, peer) = pair(theirs, ours).await;
        let bytes = content(DIRECT_BYTES_MIN as usize + 1);
        let id = hold(&sender, bytes.clone());
        let fetched = receiver.fetch_content(SCOPE, peer, id).await.unwrap();
        assert_eq!(fetched.from, Some((peer, Carrier::Stream)));
        assert_eq!(fetched.bytes, bytes);
    }
}

/// The longest that a direct channel which does not come about may hold content up: each end may
/// dial once, and shake hands.
const NO_CHANNEL_MAX: Duration = Duration::from_secs(8);

#[tokio::test]
async fn content_comes_over_the_stream_where_the_channel_is_on_and_unreachable() {
    let (silent, _kept) = silent_address().await;
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = (mute.local_addr().unwrap(), "handshake failed", mute);
    for (addresses, why) in [
        (vec![dead_address()], "neither end could dial"),
        (vec![silent; 3], "neither end could dial"),
        // Something answers there, and it is no direct channel.
        (vec![mute.0], mute.1),
    ] {
        let (key, network, contact) = bare().await;
        announce(&network, addresses.clone());
        let store = Arc::new(Store::in_memory(LIMIT));
        let bytes = content(DIRECT_BYTES_MIN as usize + 9);
        let sender = Tensors::start(network, &key, store, config(DirectListen::Off)).await;
        let sender = sender.unwrap();
        let ids = [bytes.clone(), bytes.slice(1..)].map(|bytes| hold(&sender, bytes));
        for listening in [DirectListen::Nowhere, dialled()] {
            let (receiver, _) = node(listening).await;
            receiver.0.network.add_contact(&contact).await.unwrap();
            let peer = contact.peer_id().unwrap();
            let coming = receiver.fetch_content(SCOPE, peer, ids[0]);
            let came = tokio::time::timeout(NO_CHANNEL_MAX, coming).await;
            let came = came.expect("a direct channel that does not come about is given up");
            assert_eq!(came.unwrap().from, Some((peer, Carrier::Stream)));
            // What the log said at level info, and it is not tried again at once.
            let said = receiver.0.channels.recent_refusal(peer).unwrap();
            assert!(said.contains(why), "{said}");
            let again = receiver.fetch_content(SCOPE, peer, ids[1]).await.unwrap();
            assert_eq!(again.from, Some((peer, Carrier::Stream)));
        }
        drop(sender);
    }
}

#[tokio::test]
async fn what_is_awaited_comes_before_what_is_planned() {
    for channel in [DirectListen::Off, dialled()] {
        // Slow enough that all are asked for before the first is here.
        let slow = TransferConfig {
            upload: Some(24 << 20),
            ..config(channel)
        };
        let (sender, contact) = node_with(Store::in_memory(LIMIT), slow).await;
        let receiver = dialling(&contact).await;
        let peer = contact.peer_id().unwrap();
        let put = |length: usize| hold(&sender, content(length));
        let long = DIRECT_BYTES_MIN as usize;
        let planned: Vec<ContentId> = (0..7).map(|more| put(long + more)).collect();
        let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
        let fetch = |urgency, id: ContentId| {
            let (receiver, begun) = (receiver.clone(), begun.clone());
            tokio::spawn(async move {
                let fetched = receiver
                    .fetch_as(urgency, SCOPE, &[peer], id)
                    .await
                    .unwrap();
                begun.send((id, fetched.moved)).unwrap();
            })
        };
        let tasks: Vec<_> = planned[..6]
            .iter()
            .map(|id| fetch(Urgency::Planned, *id))
            .collect();
        // Some of them move: what is awaited now, and what becomes so, overtakes the rest.
        while receiver.0.queue.moving_count() == 0 {
            tokio::task::yield_now().await;
        }
        receiver.hurry_content(&planned[5]);
        let awaited = fetch(Urgency::Awaited, planned[6]);
        awaited.await.unwrap();
        let mut ended = Vec::new();
        for task in tasks {
            task.await.unwrap();
        }
        while ended.len() < planned.len() {
            ended.push(begins.recv().await.unwrap().0);
        }
        let place = |id: &ContentId| ended.iter().position(|one| one == id).unwrap();
        let urgent = [place(&planned[5]), place(&planned[6])];
        assert!(urgent.iter().all(|place| *place <= 1), "{urgent:?} of 7");
    }
}

/// A node that relays, and the address of whoever listens through it.
async fn relaying() -> (Network, Multiaddr) {
    let key = drawn();
    let config = crate::NetworkConfig {
        listen: Some("/ip4/127.0.0.1/tcp/0".parse().unwrap()),
        options: crate::Options {
            relays: true,
            ..Default::default()
        },
        ..Default::default()
    };
    let relay = Network::start(&key, config).await.unwrap();
    let own = relay.own_addresses().await.remove(0);
    let circuit = own.with_p2p(key.peer_id()).unwrap();
    (relay, circuit.with(Protocol::P2pCircuit))
}

/// A node that listens nowhere, and knows one peer.
async fn dialling(contact: &Contact) -> Tensors {
    let key = drawn();
    let network = Network::start(&key, crate::NetworkConfig::default()).await;
    let (network, store) = (network.unwrap(), Arc::new(Store::in_memory(LIMIT)));
    network.add_contact(contact).await.unwrap();
    let tensors = Tensors::start(network, &key, store, config(DirectListen::Nowhere)).await;
    tensors.unwrap()
}

fn is_relayed(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

#[tokio::test]
async fn content_comes_through_a_relay_where_there_is_no_direct_way() {
    let (relay, circuit) = relaying().await;
    let key = drawn();
    let listening = crate::NetworkConfig {
        listen: Some(circuit),
        ..Default::default()
    };
    let network = Network::start(&key, listening).await.unwrap();
    let (addresses, account) = (network.own_addresses().await, key.public_key());
    assert!(!addresses.is_empty() && addresses.iter().all(is_relayed));
    let contact = Contact { account, addresses };
    let store = Arc::new(Store::in_memory(LIMIT));
    let sender = Tensors::start(network, &key, store, config(DirectListen::Nowhere)).await;
    let (sender, receiver) = (sender.unwrap(), dialling(&contact).await);
    let peer = contact.peer_id().unwrap();
    for length in [10, 3_000_001, DIRECT_BYTES_MIN as usize + 1] {
        let bytes = content(length);
        let id = hold(&sender, bytes.clone());
        let fetched = receiver.fetch_content(SCOPE, peer, id).await.unwrap();
        assert_eq!(fetched.bytes, bytes);
        assert_eq!(fetched.from, Some((peer, Carrier::Stream)));
    }
    // It was the relay that carried them.
    drop(relay);
    let id = hold(&sender, content(11));
    receiver.fetch_content(SCOPE, peer, id).await.unwrap_err();
}

#[tokio::test]
async fn the_same_two_need_no_relay_where_there_is_a_direct_way() {
    let (relay, circuit) = relaying().await;
    let direct = "/ip4/127.0.0.1/tcp/0".parse().unwrap();
    let (key, network, contact) = listening_at(&[direct, circuit]).await;
    let relayed = contact.addresses.iter().filter(|one| is_relayed(one));
    let relayed = relayed.count();
    assert!(relayed > 0 && relayed < contact.addresses.len());
    let store = Arc::new(Store::in_memory(LIMIT));
    let sender = Tensors::start(network, &key, store, config(DirectListen::Nowhere)).await;
    let (sender, receiver) = (sender.unwrap(), dialling(&contact).await);
    let peer = contact.peer_id().unwrap();
    let ids = [10, 3_000_001].map(|length| hold(&sender, content(length)));
    receiver.fetch_content(SCOPE, peer, ids[0]).await.unwrap();
    drop(relay);
    assert_eq!(
        receiver
            .fetch_content(SCOPE, peer, ids[1])
            .await
            .unwrap()
            .moved,
        3_000_001
    );
}

#[tokio::test]
async fn content_in_folders_travels_too() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let on_disk = |folder: &tempfile::TempDir| {
        let config = StoreConfig {
            memory_bytes_max: 1,
            folder: Some(folder.path().to_owned()),
            folder_bytes_max: LIMIT,
        };
        Store::open(config).unwrap()
    };
    let (sender, contact) = node_with(on_disk(&there), config(dialled())).await;
    let (receiver, _) = node_with(on_disk(&here), config(dialled())).await;
    receiver.0.network.add_contact(&contact).await.unwrap();
    for length in [10, 700_000, DIRECT_BYTES_MIN as usize + 5] {
        let bytes = content(length);
        let id = hold(&sender, bytes.clone());
        let fetched = receiver
            .fetch_content(SCOPE, contact.peer_id().unwrap(), id)
            .await
            .unwrap();
        assert_eq!(fetched.bytes, bytes);
        assert!(receiver.store().contains(&id));
    }
}

#[tokio::test]
async fn many_small_ones_come_in_few_rounds() {
    let (sender, receiver, peer) = pair(DirectListen::Off, DirectListen::Off).await;
    let make = |n: u32| hold(&sender, Bytes::from(n.to_be_bytes().to_vec()));
    let mut ids: Vec<ContentId> = (0..2 * WANTS_MAX as u32 + 9).map(make).collect();
    ids.push(hold(&sender, content(900_000)));
    let fetched = receiver.fetch_many(SCOPE, peer, &ids).await.unwrap();
    assert_eq!(fetched.len(), ids.len());
    assert_eq!(fetched[5].bytes[..], 5_u32.to_be_bytes());
    assert_eq!(fetched.last().unwrap().bytes, content(900_000));
    let nothing = ContentId::for_content(b"nobody has this");
    let missing = receiver
        .fetch_many(SCOPE, peer, &[ids[0], nothing])
        .await
        .unwrap_err();
    assert!(matches!(missing, FetchError::Missing { .. }), "{missing}");
}

#[tokio::test]
async fn what_a_peer_lacks_is_missing_by_name() {
    let (_sender, receiver, peer) = pair(DirectListen::Off, DirectListen::Off).await;
    let id = ContentId::for_content(b"nobody has this");
    let missing = receiver.fetch_content(SCOPE, peer, id).await.unwrap_err();
    assert!(matches!(missing, FetchError::Missing { id: named, .. } if named == id));
    let nobody = receiver.fetch_from(SCOPE, &[], id).await.unwrap_err();
    assert!(matches!(nobody, FetchError::Nobody { .. }));
}

/// Such a peer, as long as this is kept.
struct Crooked {
    contact: Contact,
    _network: Network,
}

/// A peer that answers as `answer` says whatever it is asked, and sends `body` of the frame wanted.
async fn crooked(
    answer: impl Fn(&Outline) -> ContentAnswer + Send + Sync + 'static,
    body: impl Fn(u64) -> Vec<u8> + Send + Sync + 'static,
    of: &[u8],
) -> Crooked {
    let (_, network, contact) = bare().await;
    let outline = Outline::from_bytes(of);
    let (answer, body) = (Arc::new(answer), Arc::new(body));
    network.serve_protocol(PROTOCOL, 1, move |_, mut stream| {
        let (answer, body, outline) = (answer.clone(), body.clone(), outline.clone());
        async move {
            let request: ContentRequest = wire::receive(&mut stream).await.unwrap();
            wire::send(&mut stream, &answer(&outline)).await.unwrap();
            let _ = stream.write_all(&body(request.wants[0].frame)).await;
            let _ = stream.close().await;
        }
    });
    Crooked {
        contact,
        _network: network,
    }
}

fn honest(outline: &Outline) -> ContentAnswer {
    ContentAnswer::Content {
        length: outline.length(),
        frames: outline.frames().to_vec(),
        follows: true,
    }
}

#[tokio::test]
async fn a_corrupt_frame_is_named_and_fetched_from_another() {
    let bytes = content(3 * FRAME_BYTES);
    let wrong = {
        let mut wrong = bytes.to_vec();
        wrong[FRAME_BYTES + 3] ^= 1;
        wrong
    };
    let liar = crooked(honest, move |_| wrong.clone(), &bytes).await;
    let asked = Arc::new(AtomicU64::new(u64::MAX));
    let (seen, right) = (asked.clone(), bytes.clone());
    let from = move |frame: u64| {
        seen.store(frame, Ordering::Relaxed);
        right[frame as usize * FRAME_BYTES..].to_vec()
    };
    let other = crooked(honest, from, &bytes).await;
    let (receiver, _) = node(DirectListen::Off).await;
    for crooked in [&liar, &other] {
        receiver
            .0
            .network
            .add_contact(&crooked.contact)
            .await
            .unwrap();
    }
    let (lying, honest) = (&liar, &other);
    let (liar, other) = (
        lying.contact.peer_id().unwrap(),
        honest.contact.peer_id().unwrap(),
    );
    let id = ContentId::for_content(&bytes);
    let corrupt = receiver.fetch_content(SCOPE, liar, id).await.unwrap_err();
    let named = matches!(corrupt, FetchError::Corrupt { peer, frame: 1, .. } if peer == liar);
    assert!(named, "{corrupt}");
    let fetched = receiver
        .fetch_from(SCOPE, &[liar, other], id)
        .await
        .unwrap();
    assert_eq!(
        (fetched.bytes, fetched.from),
        (bytes, Some((other, Carrier::Stream)))
    );
    assert_eq!(
        asked.load(Ordering::Relaxed),
        1,
        "what was right is not fetched again"
    );
}

#[tokio::test]
async fn lies_about_what_content_is_made_of_are_found_before_its_bytes() {
    let bytes = content(3 * FRAME_BYTES);
    let swapped = |outline: &Outline| {
        let mut frames = outline.frames().to_vec();
        frames.swap(0, 2);
        ContentAnswer::Content {
            length: outline.length(),
            frames,
            follows: true,
        }
    };
    let liar = crooked(swapped, |_| Vec::new(), &bytes).await;
    let huge = |outline: &Outline| ContentAnswer::Content {
        length: u64::MAX,
        frames: outline.frames().to_vec(),
        follows: true,
    };
    let boaster = crooked(huge, |_| Vec::new(), &bytes).await;
    let (receiver, _) = node(DirectListen::Off).await;
    for crooked in [&liar, &boaster] {
        receiver
            .0
            .network
            .add_contact(&crooked.contact)
            .await
            .unwrap();
    }
    let id = ContentId::for_content(&bytes);
    let found = receiver
        .fetch_content(SCOPE, liar.contact.peer_id().unwrap(), id)
        .await
        .unwrap_err();
    assert!(matches!(found, FetchError::Outline { .. }), "{found}");
    let found = receiver
        .fetch_content(SCOPE, boaster.contact.peer_id().unwrap(), id)
        .await
        .unwrap_err();
    assert!(matches!(found, FetchError::TooLong { .. }), "{found}");
}

#[tokio::test]
async fn a_lie_about_the_length_is_set_right_by_another() {
    let bytes = content(2 * FRAME_BYTES + 100);
    let shorter = |outline: &Outline| ContentAnswer::Content {
        length: outline.length() - 1,
        frames: outline.frames().to_vec(),
        follows: true,
    };
    let sent = bytes.clone();
    let liar = crooked(shorter, move |_| sent.to_vec(), &bytes).await;
    let (other, contact) = node(DirectListen::Off).await;
    let id = hold(&other, bytes.clone());
    let (receiver, _) = node(DirectListen::Off).await;
    for contact in [&liar.contact, &contact] {
        receiver.0.network.add_contact(contact).await.unwrap();
    }
    let holders = [liar.contact.peer_id().unwrap(), contact.peer_id().unwrap()];
    assert_eq!(
        receiver
            .fetch_from(SCOPE, &holders, id)
            .await
            .unwrap()
            .bytes,
        bytes
    );
}

#[tokio::test]
async fn a_broken_transfer_goes_on_where_it_stopped() {
    let bytes = content(4 * FRAME_BYTES);
    let asked = Arc::new(AtomicUsize::new(0));
    let (seen, right) = (asked.clone(), bytes.clone());
    // Each stream gives one frame and a half and breaks.
    let piece = move |frame: u64| {
        seen.fetch_add(frame as usize + 1, Ordering::Relaxed);
        let start = frame as usize * FRAME_BYTES;
        let end = right.len().min(start + FRAME_BYTES + FRAME_BYTES / 2);
        right[start..end].to_vec()
    };
    let sender = crooked(honest, piece, &bytes).await;
    let (receiver, _) = node(DirectListen::Off).await;
    receiver
        .0
        .network
        .add_contact(&sender.contact)
        .await
        .unwrap();
    let id = ContentId::for_content(&bytes);
    let fetched = receiver
        .fetch_content(SCOPE, sender.contact.peer_id().unwrap(), id)
        .await
        .unwrap();
    assert_eq!(fetched.bytes, bytes);
    assert_eq!(asked.load(Ordering::Relaxed), 1 + 2 + 3 + 4);
}
