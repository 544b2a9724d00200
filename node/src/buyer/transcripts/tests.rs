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

/// The transcript of a tab with these answers, whose receipt both sides signed.
fn transcript_of(answers: &[&str]) -> TabTranscript {
    let [provider, buyer] = [7, 9].map(|seed| SigningKey::from_bytes(&[seed; 32]));
    let account = |key: &SigningKey| AccountKey::from(key);
    let log = TabLog::default();
    log.on_bought(LeaseId(5));
    for text in answers {
        log.on_answer(hash_answer(&answer(text)));
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
    let other = refused(&|it| it.exchanges[0].answer = answer("a plaice"));
    assert_eq!(other, UnsignedText::Answers);
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
