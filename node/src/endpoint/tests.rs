//! Tests an endpoint with scripted decoders and HTTP servers: its answers and figures, and how it
//! handles refusals, failures and a stop by the buyer.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use souk_market::{AccountKey, LeaseId};
use souk_node_testing::fake_engine::{FakeEngine, KEY, MODEL, Manner};
use souk_roles::tokens::prompts::PromptHistory;
use souk_roles::tokens::text::{Message, Role};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::own_engine::OwnAnswer;
use super::pieces::PieceStreams;
use super::*;

/// A decoder that gives these pieces. It then waits, unless one of them ends the answer.
#[derive(Debug)]
struct Script {
    pieces: Vec<Result<AnswerPiece, OwnFault>>,
    /// Keeps unfinished answers open.
    open: Mutex<Vec<mpsc::Sender<Result<AnswerPiece, OwnFault>>>>,
}

impl OwnEngine for Script {
    fn begin_answer(&self, _: LeaseId, _: TextRequest) -> OwnAnswer {
        let (sender, answer) = mpsc::channel(self.pieces.len() + 1);
        for piece in &self.pieces {
            sender.try_send(piece.clone()).unwrap();
        }
        let is_over = |it: &Result<AnswerPiece, _>| it.as_ref().is_err_and(|_| true);
        if !self.pieces.iter().any(is_over) {
            self.open.lock().unwrap().push(sender);
        }
        answer
    }
}

fn piece(text: &str, finish: Option<Finish>) -> Result<AnswerPiece, OwnFault> {
    let text = AnswerText {
        content: text.to_owned(),
        ..AnswerText::default()
    };
    Ok(AnswerPiece { text, finish })
}

fn endpoint(pieces: Vec<Result<AnswerPiece, OwnFault>>) -> Endpoint {
    let choice = ServedModelChoice {
        source: "bundled".into(),
        model: "m".to_owned(),
        context: None,
        threads: None,
    };
    let open = Mutex::default();
    let engine = Arc::new(Script { pieces, open });
    Endpoint::of_own_engine(&choice, 2, Some(engine)).unwrap()
}

fn request() -> TextRequest {
    TextRequest {
        messages: vec![Message {
            role: Role::User,
            content: "what".to_owned(),
        }],
        tokens_max: 8,
        ..TextRequest::default()
    }
}

async fn answer(endpoint: &Endpoint, stop: bool) -> TextAnswer {
    let (streams, buyer) = (Arc::<PieceStreams>::default(), AccountKey([1; 32]));
    streams.open_tab(LeaseId(1), buyer);
    let sink = streams.open_sink(LeaseId(1), 0);
    if stop {
        streams.stop_request(LeaseId(1), buyer, 0);
    }
    endpoint
        .answer_request(
            &request(),
            PromptHistory::default().count_prompt(&request()),
            Duration::from_secs(60),
            &sink,
        )
        .await
}

#[tokio::test]
async fn the_decoders_pieces_are_an_answer_and_are_counted() {
    let whole = endpoint(vec![piece("a mar", None), piece("ket", Some(Finish::Stop))]);
    let answered = answer(&whole, false).await;
    assert_eq!(answered.text.content, "a market");
    assert_eq!(answered.finish, Finish::Stop);
    let figures = whole.token_figures();
    assert_eq!((figures.answered, figures.running), (1, 0));
    assert_eq!((figures.input_tokens, figures.output_tokens), (1, 2));
}

#[tokio::test]
async fn a_stop_ends_an_answer_that_is_under_way() {
    let endless = endpoint(Vec::new());
    assert_eq!(answer(&endless, true).await.finish, Finish::Cancelled);
    assert_eq!(endless.token_figures().cancelled, 1);
}

#[tokio::test]
async fn a_refusal_is_told_and_a_failed_decoder_gets_no_more_buyers_for_a_while() {
    let cause = "it is too long".to_owned();
    let refusing = endpoint(vec![Err(OwnFault::Refused(cause))]);
    let refused = answer(&refusing, false).await;
    assert_eq!(refused.finish, Finish::Refused);
    assert!(refused.message.contains("it is too long"), "{refused:?}");
    assert_eq!(refusing.slots_now(), 2);
    assert_eq!(refusing.token_figures().trouble, None, "of one request");
    let failed = OwnFault::Failed("/secret/path".to_owned());
    let failing = endpoint(vec![piece("a mar", None), Err(failed)]);
    let broken = answer(&failing, false).await;
    assert_eq!(broken.finish, Finish::Interrupted);
    assert_eq!(broken.text.content, "a mar");
    assert!(!broken.message.contains("secret"), "{broken:?}");
    assert_eq!(failing.slots_now(), 0);
    // The owner sees the cause, until the engine answers again.
    let trouble = failing.token_figures().trouble.unwrap();
    assert!(trouble.contains("/secret/path"), "{trouble}");
}

#[tokio::test]
async fn an_answer_ends_what_the_owner_sees_of_a_failure() {
    let answering = endpoint(vec![piece("a market", Some(Finish::Stop))]);
    *answering.lock_trouble() = Some("it was out of reach".to_owned());
    assert_eq!(answer(&answering, false).await.finish, Finish::Stop);
    assert_eq!(answering.token_figures().trouble, None);
}

/// Opens an endpoint with two slots that sells the answers of an engine.
pub(crate) fn open_endpoint(folder: &Path, engine: &FakeEngine) -> Endpoint {
    let key_file = folder.join("key");
    std::fs::write(&key_file, KEY).unwrap();
    std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let choice = EndpointChoice {
        url: engine.url.clone(),
        model: MODEL.to_owned(),
        key_file: Some(key_file),
        ca_file: None,
        resold: false,
        fields: BTreeMap::new(),
    };
    Endpoint::new(&choice, 2).unwrap()
}

/// Reads a request that states its length, and returns its body.
pub(super) async fn read_request_body(socket: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let length = lines.find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    socket.read_exact(&mut body).await?;
    Ok(body)
}

#[tokio::test]
async fn an_engine_that_refuses_everything_is_not_on_sale() {
    let folder = tempfile::tempdir().unwrap();
    let engine = FakeEngine::start(Manner::Refuses);
    let refusing = open_endpoint(folder.path(), &engine);
    for number in 0..8 {
        assert_eq!(refusing.slots_now(), 2, "{number}");
        let refused = answer(&refusing, false).await;
        assert_eq!(refused.finish, Finish::Refused, "{}", refused.message);
    }
    assert_eq!(refusing.slots_now(), 0);
}

#[tokio::test]
async fn each_tab_has_a_salt_of_its_own_at_an_engine_that_takes_one() {
    let folder = tempfile::tempdir().unwrap();
    let engine = FakeEngine::start(Manner::Caches);
    let salted = open_endpoint(folder.path(), &engine);
    salted.check_engine().await.unwrap();
    for tab in [1, 1, 2] {
        salted.answer_unsold(LeaseId(tab), &request()).await;
    }
    let salts = || {
        let bodies = engine.requests().into_iter();
        bodies.map(|body| body["cache_salt"].as_str().map(str::to_owned))
    };
    let first: Vec<Option<String>> = salts().collect();
    assert!(first[0].is_some(), "{first:?}");
    assert_eq!(first[0], first[1]);
    assert_ne!(first[0], first[2]);
    // Another engine is started, which refuses the field. What a buyer writes cannot show that.
    engine.set_manner(Manner::Well);
    let mut naming = request();
    naming.messages[0].content = "my cache_salt".to_owned();
    let refused = salted.answer_unsold(LeaseId(1), &naming).await;
    assert_eq!(refused.finish, Finish::Refused);
    let answered = salted.answer_unsold(LeaseId(1), &request()).await;
    assert_eq!(answered.finish, Finish::Stop, "{}", answered.message);
    assert_eq!(salts().next_back(), Some(None));
}

#[test]
fn without_a_decoder_nothing_is_sold() {
    let choice = ServedModelChoice {
        source: "bundled".into(),
        model: "m".to_owned(),
        context: None,
        threads: None,
    };
    let none = Endpoint::of_own_engine(&choice, 2, None).unwrap_err();
    assert!(
        none.to_string().contains("without language models"),
        "{none}"
    );
}
