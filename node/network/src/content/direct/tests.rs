//! Tests direct channels between two nodes of this process: who can open one, which end dials, what
//! arrives, and the limits and damaged messages.

use std::io::Write;

use souk_folder::contact::Contact;

use super::*;

async fn node(listening: DirectListen) -> (DirectChannels, NodeKey, Contact) {
    let key = NodeKey::generate();
    let config = crate::NetworkConfig {
        listen: Some("/ip4/127.0.0.1/tcp/0".parse().unwrap()),
        ..Default::default()
    };
    let network = Network::start(&key, config).await.unwrap();
    let addresses = network.own_addresses().await;
    let account = key.public_key();
    let echo = |_, mut channel: Channel| {
        while let Ok(Some(word)) = channel.receive_message::<Vec<u8>>() {
            channel.send_message(&word).unwrap();
        }
    };
    let channels = DirectChannels::start(network, key.clone(), listening, echo).await;
    (channels.unwrap(), key, Contact { account, addresses })
}

/// Has a node that takes part in no direct channels say that it is dialled at these addresses, and
/// not get through to anybody itself.
pub(crate) fn announce(network: &Network, addresses: Vec<SocketAddr>) {
    network.serve_protocol(PROTOCOL, 4, move |_, mut stream| {
        let addresses = addresses.clone();
        async move {
            let _: Proposal = wire::receive(&mut stream).await.unwrap();
            let reply = DirectReply::Dial(addresses);
            wire::send(&mut stream, &reply).await.unwrap();
            if let Ok(DialOutcome::YourTurn) = wire::receive(&mut stream).await {
                wire::send(&mut stream, &DialOutcome::Neither)
                    .await
                    .unwrap();
            }
            // Until the other end has read it.
            let _ = wire::receive_or_end::<DialOutcome>(&mut stream).await;
        }
    });
}

/// Where nothing listens.
pub(crate) fn dead_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// Where nobody is refused and nobody is answered, as behind a firewall that drops what comes; as
/// long as what comes with it is kept.
pub(crate) async fn silent_address() -> (SocketAddr, impl Sized) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    // Who comes after these waits for a place, where the system lets anybody wait.
    let waiting: Vec<_> = (0..4)
        .map(|_| tokio::spawn(tokio::net::TcpStream::connect(address)))
        .collect();
    tokio::task::yield_now().await;
    (address, (listener, waiting))
}

fn dialled() -> DirectListen {
    DirectListen::At("127.0.0.1:0".parse().unwrap())
}

/// A connection between two threads.
fn connected() -> (TcpStream, TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

#[test]
fn messages_and_bytes_of_any_length_arrive() {
    let (ours, theirs) = (NodeKey::generate(), NodeKey::generate());
    let (one, other) = connected();
    let (key, peer) = (theirs.clone(), ours.public_key());
    let echo = std::thread::spawn(move || {
        let mut channel = dialled_end(other, &key, peer).unwrap();
        while let Some(word) = channel.receive_message::<Vec<u8>>().unwrap() {
            channel.send_message(&word).unwrap();
            channel.send_bytes(&word).unwrap();
        }
    });
    let mut channel = dialling_end(one, &ours, theirs.public_key()).unwrap();
    for length in [0, 1, 16_384, 16_385, 1 << 20, 3_000_001] {
        let word: Vec<u8> = (0..length).map(|n| (n / 3) as u8).collect();
        channel.send_message(&word).unwrap();
        let back: Vec<u8> = channel.receive_message().unwrap().unwrap();
        assert_eq!(back, word);
        let mut again = Vec::new();
        let took = channel.receive_exact(length, |bytes| again.extend_from_slice(bytes));
        took.unwrap();
        assert_eq!(again, word);
    }
    drop(channel);
    // The other end closes without TLS's farewell, as a process that dies does.
    assert!(echo.join().is_err());
}

#[test]
fn another_key_than_the_agreed_one_is_refused_at_both_ends() {
    let (ours, theirs, third) = (
        NodeKey::generate(),
        NodeKey::generate(),
        NodeKey::generate(),
    );
    for (expected_by_us, expected_by_them) in [
        (third.public_key(), ours.public_key()),
        (theirs.public_key(), third.public_key()),
    ] {
        let (one, other) = connected();
        let key = theirs.clone();
        let far = std::thread::spawn(move || {
            let mut channel = dialled_end(other, &key, expected_by_them)?;
            channel.receive_message::<u64>().map_err(io::Error::other)
        });
        let near = dialling_end(one, &ours, expected_by_us);
        // In TLS 1.3 who dials is done first: it learns with its first word that it is not wanted.
        let near = near.and_then(|mut channel| {
            let sent = channel.send_message(&1_u64);
            sent.and_then(|()| channel.receive_message::<u64>())
                .map_err(io::Error::other)
        });
        assert!(near.is_err() || expected_by_us == theirs.public_key());
        assert!(far.join().unwrap().is_err());
    }
}

#[test]
fn a_changed_byte_on_the_way_ends_the_channel() {
    let (ours, theirs) = (NodeKey::generate(), NodeKey::generate());
    let (one, near_middle) = connected();
    let (far_middle, other) = connected();
    let relay = |mut from: TcpStream, mut to: TcpStream, spoil_at: usize| {
        std::thread::spawn(move || {
            let (mut buffer, mut passed) = (vec![0; 4096], 0);
            while let Ok(read @ 1..) = io::Read::read(&mut from, &mut buffer) {
                if (passed..passed + read).contains(&spoil_at) {
                    buffer[spoil_at - passed] ^= 1;
                }
                passed += read;
                if to.write_all(&buffer[..read]).is_err() {
                    return;
                }
            }
            let _ = to.shutdown(std::net::Shutdown::Write);
        })
    };
    let (back_from, back_to) = (
        far_middle.try_clone().unwrap(),
        near_middle.try_clone().unwrap(),
    );
    relay(near_middle, far_middle, 100_000);
    relay(back_from, back_to, usize::MAX);
    let (key, peer) = (theirs.clone(), ours.public_key());
    let far = std::thread::spawn(move || {
        // What comes with the last words of the handshake is decrypted with them.
        match dialled_end(other, &key, peer) {
            Ok(mut channel) => channel.receive_message::<Vec<u8>>().is_err(),
            Err(_) => true,
        }
    });
    let mut channel = dialling_end(one, &ours, theirs.public_key()).unwrap();
    let _ = channel.send_message(&vec![7_u8; 200_000]);
    assert!(far.join().unwrap());
}

#[tokio::test]
async fn who_was_not_invited_does_not_come_to_the_handshake() {
    let (channels, key, _) = node(dialled()).await;
    let address = channels.0.address.unwrap();
    let stranger = tokio::task::spawn_blocking(move || {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(&Token::default()).unwrap();
        dialling_end(connection, &NodeKey::generate(), key.public_key()).err()
    });
    assert!(stranger.await.unwrap().is_some());
    assert!(lock(&channels.0.served).is_empty());
}

#[tokio::test]
async fn an_address_that_answers_is_found_among_those_that_do_not() {
    let (silent, _kept) = silent_address().await;
    let (channels, ..) = node(dialled()).await;
    let address = channels.0.address.unwrap();
    let mut addresses = vec![silent; ADDRESSES_MAX - 2];
    addresses.extend([dead_address(), address]);
    let dialled = dial_first(addresses, Token::default()).await.unwrap();
    assert_eq!(dialled.peer_addr().unwrap(), address);
    let none = dial_first(vec![dead_address()], Token::default()).await;
    assert!(none.unwrap_err().to_string().contains("127.0.0.1:"));
}

/// What a node answers a stranger that would be dialled at this address; whether somebody knocked.
async fn knocked_at(address: &str) -> (DialOutcome, bool) {
    let (_server, _, contact) = node(dialled()).await;
    let (client, ..) = node(DirectListen::Off).await;
    client.0.network.add_contact(&contact).await.unwrap();
    let listener = TcpListener::bind(address).await.unwrap();
    let proposal = Proposal {
        token: Token::default(),
        addresses: vec![listener.local_addr().unwrap()],
    };
    let peer = contact.peer_id().unwrap();
    let mut stream = client.0.network.open_stream(peer, PROTOCOL).await.unwrap();
    wire::send(&mut stream, &proposal).await.unwrap();
    let _: DirectReply = wire::receive(&mut stream).await.unwrap();
    let turn = DialOutcome::YourTurn;
    wire::send(&mut stream, &turn).await.unwrap();
    tokio::select! {
        answer = wire::receive::<DialOutcome>(&mut stream) => (answer.unwrap(), false),
        _ = listener.accept() => (DialOutcome::Dialled, true),
    }
}

#[tokio::test]
async fn a_stranger_is_dialled_where_it_is_and_has_nobody_dial_elsewhere() {
    assert!(knocked_at("127.0.0.1:0").await.1);
    let (answer, knocked) = knocked_at("127.0.0.2:0").await;
    assert!(matches!(answer, DialOutcome::Neither) && !knocked);
}

#[tokio::test]
async fn a_peer_has_no_more_channels_than_its_share() {
    let (_server, _, contact) = node(dialled()).await;
    let (client, ..) = node(DirectListen::Nowhere).await;
    client.0.network.add_contact(&contact).await.unwrap();
    let peer = contact.peer_id().unwrap();
    let mut held = Vec::new();
    for _ in 0..SERVED_PER_PEER_MAX {
        held.push(client.acquire_channel(peer).await.unwrap());
    }
    let full = client.acquire_channel(peer).await.err();
    assert!(matches!(full, Some(DirectError::Full)), "{full:?}");
    let again = client.acquire_channel(peer).await.err();
    assert!(
        matches!(again, Some(DirectError::Refused { .. })),
        "{again:?}"
    );
    // One that is kept is taken, whatever was refused since.
    client.keep_channel(peer, held.pop().unwrap());
    assert!(client.acquire_channel(peer).await.is_ok());
}

#[test]
fn damaged_words_of_an_agreement_do_no_harm() {
    let proposal = Proposal {
        token: [7; 32],
        addresses: vec!["127.0.0.1:4001".parse().unwrap(); ADDRESSES_MAX],
    };
    let bytes = postcard::to_allocvec(&proposal).unwrap();
    assert!(bytes.len() <= WORD_BYTES_MAX);
    souk_node_testing::fuzzed::fuzz_decoder(10, &[proposal]);
    souk_node_testing::fuzzed::fuzz_decoder::<DirectReply>(11, &[DirectReply::Full]);
    souk_node_testing::fuzzed::fuzz_decoder::<DialOutcome>(12, &[DialOutcome::Dialled]);
}

#[tokio::test]
async fn an_address_for_channels_outlives_damaged_handshakes() {
    let (_channels, _, _) = node(DirectListen::Nowhere).await;
    let mut damage = souk_node_testing::fuzzed::DamageSource::new(13);
    for _ in 0..40 {
        let (ours, theirs) = (NodeKey::generate(), NodeKey::generate());
        let (mut near, far) = connected();
        let account = ours.public_key();
        let shaking = std::thread::spawn(move || dialled_end(far, &theirs, account).is_err());
        // The head of a TLS record with a hello in it, damaged.
        let length = damage.below(2_000);
        let mut hello = vec![0x16, 3, 1, (length >> 8) as u8, length as u8, 1, 0];
        hello.extend((0..length).map(|_| damage.next_number() as u8));
        let _ = near.write_all(&damage.of(&hello));
        drop(near);
        assert!(shaking.join().unwrap(), "no direct channel comes of it");
    }
}
