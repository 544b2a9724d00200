//! Reads the server-sent events of a streamed chat answer. The bytes come from an engine that souk
//! does not know, so every length is bounded and every field is optional.

use serde::Deserialize;
use souk_roles::tokens::text::{AnswerText, Finish};

/// The longest line of a stream in bytes.
const LINE_BYTES_MAX: usize = 256 << 10;

/// The data of the last event.
const DONE: &str = "[DONE]";

/// A piece of an answer: some text, and the end if the answer has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerPiece {
    /// The text that follows.
    pub text: AnswerText,
    /// Why the answer ended, if it did.
    pub finish: Option<Finish>,
}

/// Why an event stream cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamFault {
    /// A line is longer than any that an engine sends.
    #[error("a line has more than {LINE_BYTES_MAX} bytes")]
    Long,
    /// An event is not the JSON of a chat.
    #[error("an event is not valid: {0}")]
    Event(String),
    /// The engine reports an error inside the stream.
    #[error("the engine reports: {0}")]
    Reported(String),
}

/// Splits received bytes into events, wherever the boundaries of the chunks are.
#[derive(Debug, Default)]
pub(super) struct EventReader {
    /// The bytes of the line that is not complete.
    line: Vec<u8>,
}

// Engines give null for what they leave out.
#[derive(Deserialize)]
struct Chunk {
    choices: Option<Vec<Choice>>,
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning: Option<String>,
    reasoning_content: Option<String>,
}

impl EventReader {
    /// Adds bytes of the stream, and returns the pieces that they complete. A line that is no event
    /// of a chat is a fault, which comes after the pieces before it and ends the stream.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<Result<AnswerPiece, StreamFault>> {
        let mut pieces = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            let piece = match part.ends_with(b"\n") {
                _ if self.line.len() > LINE_BYTES_MAX => Err(StreamFault::Long),
                true => read_line(&std::mem::take(&mut self.line)),
                false => Ok(None),
            };
            let is_fault = piece.is_err();
            pieces.extend(piece.transpose());
            if is_fault {
                break;
            }
        }
        pieces
    }
}

/// Reads one line; none if it holds no event, such as a comment or an empty line.
fn read_line(line: &[u8]) -> Result<Option<AnswerPiece>, StreamFault> {
    let text = String::from_utf8_lossy(line);
    let Some(data) = text.trim_end().strip_prefix("data:") else {
        return Ok(None);
    };
    let data = data.trim_start();
    if data == DONE {
        return Ok(Some(AnswerPiece {
            finish: Some(Finish::Stop),
            ..AnswerPiece::default()
        }));
    }
    let chunk: Chunk =
        serde_json::from_str(data).map_err(|error| StreamFault::Event(error.to_string()))?;
    if let Some(error) = chunk.error {
        return Err(StreamFault::Reported(error_message(&error)));
    }
    let Some(choice) = chunk.choices.into_iter().flatten().next() else {
        // The usage comes in an event without choices, and souk counts for itself.
        return Ok(None);
    };
    let delta = choice.delta.unwrap_or_default();
    // Some engines give an empty reason in each chunk before the last one.
    let reason = choice.finish_reason.filter(|reason| !reason.is_empty());
    Ok(Some(AnswerPiece {
        text: AnswerText {
            // Some engines send both, with the same text.
            reasoning: delta
                .reasoning_content
                .or(delta.reasoning)
                .unwrap_or_default(),
            content: delta.content.unwrap_or_default(),
        },
        finish: reason.map(|reason| match reason.as_str() {
            "length" => Finish::Length,
            "content_filter" => Finish::ContentFilter,
            _ => Finish::Stop,
        }),
    }))
}

/// Returns the message of an error object, or the object itself.
pub(super) fn error_message(error: &serde_json::Value) -> String {
    let message = error.get("message").and_then(|message| message.as_str());
    message.map_or_else(|| error.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = concat!(
        ": a comment\n\n",
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"reasoning\":\"hm\"},\"finish_reason\":\"\"}]}\r\n\r\n",
        "data: {\"choices\":null}\n\ndata: {\"choices\":[{\"delta\":null}],\"error\":null}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"ein Käfer\"},\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}],\"x\":1}\n\n",
        "data: {\"choices\":[],\"usage\":{\"total_tokens\":9}}\n\n",
        "data: [DONE]\n\n",
    );

    fn read_all(cut: usize) -> (AnswerText, Vec<Finish>) {
        let (mut reader, mut text) = (EventReader::default(), AnswerText::default());
        let mut ends = Vec::new();
        for bytes in STREAM.as_bytes().chunks(cut) {
            for piece in reader.push(bytes) {
                let piece = piece.unwrap();
                text.push(&piece.text);
                ends.extend(piece.finish);
            }
        }
        (text, ends)
    }

    #[test]
    fn a_stream_says_the_same_however_it_is_cut() {
        let whole = read_all(STREAM.len());
        assert_eq!(whole.0.content, "ein Käfer");
        assert_eq!(whole.0.reasoning, "hm");
        assert_eq!(whole.1, [Finish::Length, Finish::Stop]);
        for cut in 1..40 {
            assert_eq!(read_all(cut), whole, "{cut}");
        }
    }

    #[test]
    fn an_error_in_the_stream_and_damaged_lines_are_faults() {
        let push = |text: &str| EventReader::default().push(text.as_bytes());
        let reported = push("data: {\"error\":{\"message\":\"out of memory\"}}\n");
        let text = "out of memory".to_owned();
        assert_eq!(reported, [Err(StreamFault::Reported(text))]);
        assert!(matches!(
            push("data: {\"cho\n")[..],
            [Err(StreamFault::Event(_))]
        ));
        let long = "x".repeat(LINE_BYTES_MAX + 1);
        assert_eq!(push(&long), [Err(StreamFault::Long)]);
        // The pieces before a fault count, and nothing after it does.
        let piece = "data: {\"choices\":[{}]}\n";
        let mixed = push(&format!("{piece}data: {{\"cho\n{piece}"));
        let good = Ok(AnswerPiece::default());
        assert!(matches!(&mixed[..], [first, Err(StreamFault::Event(_))] if *first == good));
        // Some engines give a text of reasoning by both of its names.
        let both = r#"{"choices":[{"delta":{"reasoning":"hm","reasoning_content":"hm"}}]}"#;
        let both = push(&format!("data: {both}\n")).remove(0).unwrap();
        assert_eq!(both.text.reasoning, "hm");
        // Bytes that are no text are replaced, and count as such.
        let broken = EventReader::default()
            .push(b"data: {\"choices\":[{\"delta\":{\"content\":\"\xff\"}}]}\n");
        assert_eq!(broken[0].as_ref().unwrap().text.content, "\u{fffd}");
    }
}
