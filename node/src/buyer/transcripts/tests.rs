//! Tests transcripts of tabs: what their receipts prove, which exchanges are kept, and who can read
//! the files.

use std::os::unix::fs::PermissionsExt;

use ed25519_dalek::SigningKey;
use souk_market::{
    Class, DeviceMicros, Dtype, JobId, MarketId, Millis, Name, Permille, Price, ReceiptBody,
};
use souk_roles::tokens::text::{AnswerText, Finish, Message, Role};

use super::*;

const MODEL: &str = "qwen/qwen3-8b";

fn request() -> TextRequest {
    TextRequest {
        messages: vec![Message {
            role: Role::User,
            content: "what is a market?".to_owned(),
        }],
        tokens_max: 16,
        temperature: Some(0.25),
        ..TextRequest::default()
    }
}

fn answer(content: &str) -> TextAnswer {
    TextAnswer {
        text: AnswerText {
            content: content.to_owned(),
            ..AnswerText::default()
        },
        finish: Finish::Stop,
        message: String::new(),
    }
}

/// Returns the transcript of a tab with these answers, whose receipt both sides signed.
fn transcript_of(answers: &[&str]) -> TabTranscript {
    let [provider, buyer] = [7, 9].map(|seed| SigningKey::from_bytes(&[seed; 32]));
    let account = |key: &SigningKey| AccountKey::from(key);
    let log = TabLog::default();
    log.on_bought(LeaseId(5));
    for text in answers {
        log.on_answer(hash_answer(&answer(text)), String::new());
        log.on_delivered(1_700_000_000, &request(), &answer(text));
    }
    let ids: Vec<ContentId> = answers.iter().map(|it| hash_answer(&answer(it))).collect();
    let outputs = transcript(&ids).into_iter();
    let (price, usage) = (Price(1_000), DeviceMicros(4_000));
    let body = ReceiptBody {
        market: MarketId([0; 32]),
        lease: LeaseId(5),
        job: JobId::default(),
        buyer: account(&buyer),
        provider: account(&provider),
        graph: souk_market::ContentId(*TextCard::new(MODEL).unwrap().id().as_bytes()),
        inputs: Vec::new(),
        outputs: outputs
            .map(|id| souk_market::ContentId(*id.as_bytes()))
            .collect(),
        class: Class::default(),
        model: Name::try_from(MODEL).unwrap(),
        emulated: false,
        dtype: Dtype::F32,
        declared_mega_ops: 0,
        delivered_mega_ops: 0,
        usage,
        metered: None,
        idle: DeviceMicros(0),
        idle_part: Permille(0),
        price,
        amount: ReceiptBody::amount_due(price, usage).expect("a small amount"),
        bytes_in: 0,
        bytes_out: 0,
        started: Millis(1),
        finished: Millis(2),
    };
    let receipt = Receipt::new(body);
    let receipt = receipt.sign_as_provider(&provider).sign_as_buyer(&buyer);
    let account = account(&provider);
    let taken = log.take_transcript(MODEL, account, Some(Box::new(receipt)));
    taken.expect("it has texts")
}

#[test]
fn a_receipt_proves_its_own_answers_and_no_others() {
    let whole = transcript_of(&["a place", "where strangers trade"]);
    assert_eq!(whole.check_signed(), Ok(()));
    let refused = |change: &dyn Fn(&mut TabTranscript)| {
        let mut changed = whole.clone();
        change(&mut changed);
        changed.check_signed().unwrap_err()
    };
    // An answer that the receipt does not name is left out, and the others are not.
    let mut other = whole.clone();
    other.exchanges[0].answer = answer("a plaice");
    assert_eq!((other.check_signed(), other.drop_unnamed()), (Ok(()), 1));
    assert_eq!(other.exchanges, whole.exchanges[1..]);
    let fewer = refused(&|it| it.answers.truncate(1));
    assert_eq!(fewer, UnsignedText::Answers);
    let provider = AccountKey([3; 32]);
    assert_eq!(refused(&|it| it.provider = provider), UnsignedText::Other);
    assert_eq!(refused(&|it| it.model.push('x')), UnsignedText::Other);
    assert_eq!(refused(&|it| it.receipt = None), UnsignedText::NoReceipt);
    let amount = refused(&|it| it.receipt.as_mut().unwrap().body.amount.0 += 1);
    assert!(matches!(amount, UnsignedText::Receipt(_)), "{amount:?}");
    // Nobody signs what was asked.
    let mut changed = whole.clone();
    changed.exchanges[0].request.messages[0].content = "something else".to_owned();
    assert_eq!(changed.check_signed(), Ok(()));
}

#[test]
fn the_newest_transcripts_are_kept_for_their_owner_alone() {
    let market = tempfile::tempdir().unwrap();
    let folder = TranscriptFolder::open(market.path(), 2).unwrap();
    for text in ["one", "two", "three"] {
        folder.keep(&transcript_of(&[text])).unwrap();
        // Each file has a name of its own.
        while list_files(&folder.path)
            .unwrap()
            .last()
            .is_some_and(|last| {
                let name = last.file_name().unwrap().to_string_lossy().into_owned();
                name.starts_with(&format!("{:015}-", unix_ms()))
            })
        {}
    }
    let (kept, damaged) = read_transcripts(market.path(), MODEL).unwrap();
    let texts = kept
        .iter()
        .map(|it| it.exchanges[0].answer.text.content.as_str());
    assert_eq!(texts.collect::<Vec<_>>(), ["two", "three"]);
    assert_eq!(kept[1], transcript_of(&["three"]));
    assert_eq!(damaged, 0);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder.path), 0o700);
    assert!(
        list_files(&folder.path)
            .unwrap()
            .iter()
            .all(|file| mode(file) == 0o600)
    );
    // Another model's are left out, and a damaged file is counted.
    assert_eq!(read_transcripts(market.path(), "other").unwrap().0, []);
    fs::write(folder.path.join("9.json"), "{").unwrap();
    assert_eq!(read_transcripts(market.path(), MODEL).unwrap().1, 1);
    let nowhere = read_transcripts(&market.path().join("none"), MODEL).unwrap();
    assert_eq!(nowhere, (Vec::new(), 0));
}

#[test]
fn a_tab_keeps_so_much_text_and_no_more() {
    let log = TabLog::default();
    for number in 0..EXCHANGES_MAX + 9 {
        log.on_delivered(0, &request(), &answer(&format!("answer {number}")));
    }
    let provider = AccountKey([3; 32]);
    let kept = log.take_transcript(MODEL, provider, None).unwrap();
    assert_eq!(kept.exchanges.len(), EXCHANGES_MAX);
    let long = "x".repeat(TEXT_BYTES_MAX);
    log.on_delivered(0, &request(), &answer(&long));
    log.on_delivered(0, &request(), &answer(""));
    assert_eq!(log.take_transcript(MODEL, provider, None), None);
}

#[test]
fn a_long_message_keeps_the_hash_of_its_answer() {
    let long = TextAnswer {
        message: "x".repeat(257),
        ..answer("a place")
    };
    let log = TabLog::default();
    log.on_answer(hash_answer(&long), long.message.clone());
    // The tab cuts the message for its reader.
    log.on_delivered(5, &request(), &answer("a place"));
    let taken = log.take_transcript(MODEL, AccountKey([3; 32]), None);
    let mut taken = taken.expect("it has a text");
    assert_eq!(taken.drop_unnamed(), 0);
    assert_eq!(taken.exchanges[0].answer, long);
}

fn exchange(at: u64, content: &str) -> TextExchange {
    TextExchange {
        at,
        request: request(),
        answer: answer(content),
    }
}

#[test]
fn which_answers_of_a_long_tab_are_kept_is_drawn() {
    let answers = 10 * EXCHANGES_MAX as u64;
    let log = TabLog::default();
    for at in 0..answers {
        log.on_answer(hash_answer(&answer("a place")), String::new());
        log.on_delivered(at, &request(), &answer("a place"));
    }
    let taken = log.take_transcript(MODEL, AccountKey([3; 32]), None);
    let kept: Vec<u64> = taken.unwrap().exchanges.iter().map(|it| it.at).collect();
    assert_eq!(kept.len(), EXCHANGES_MAX);
    assert!(kept.is_sorted());
    // All of the first half with odds of 2 to the -64.
    assert!(kept.last() > Some(&(answers / 2)), "{kept:?}");
}

#[test]
fn the_least_lots_are_kept_within_the_bytes() {
    let mut log = LoggedTab::default();
    let half = "x".repeat(TEXT_BYTES_MAX / 2 - 100);
    for (lot, at) in [(9, 1), (3, 2), (7, 3), (8, 4), (5, 5)] {
        log.draw(lot, exchange(at, &half));
    }
    let kept = log.exchanges.iter().map(|it| it.exchange.at);
    assert_eq!(kept.collect::<Vec<_>>(), [2, 5]);
    assert!(log.bytes <= TEXT_BYTES_MAX);
    log.draw(1, exchange(6, &"x".repeat(TEXT_BYTES_MAX + 1)));
    assert_eq!(log.exchanges.len(), 2);
}

#[test]
fn an_existing_folder_and_what_a_killed_server_left_are_put_right() {
    let market = tempfile::tempdir().unwrap();
    let path = market.path().join(TRANSCRIPTS_FOLDER);
    fs::create_dir_all(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let [old, new] = ["1.partial", "2.partial"].map(|name| path.join(name));
    for file in [&old, &new] {
        fs::write(file, "{").unwrap();
    }
    let long_ago = std::time::SystemTime::now() - 2 * PARTIAL_AGE_MAX;
    let opened = fs::File::options().write(true).open(&old).unwrap();
    opened.set_modified(long_ago).unwrap();
    TranscriptFolder::open(market.path(), 2).unwrap();
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o700
    );
    assert!(!old.exists() && new.exists());
    let file = path.join("large");
    fs::write(&file, "1234").unwrap();
    assert_eq!(read_bounded(&file, 3), None);
    assert_eq!(read_bounded(&file, 4).as_deref(), Some(&b"1234"[..]));
}
