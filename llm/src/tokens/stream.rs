//! Converts tokens to text one by one. The pieces together equal the decoder's text of all tokens.
//!
//! A token can be a part of a character. In byte-level vocabularies each letter of a token stands
//! for a byte, and invalid UTF-8 becomes U+FFFD. Other vocabularies write a character that has no
//! token as a run of byte tokens, such as `<0xE4>`; their decoder converts a run as a whole, and
//! one wrong byte turns all of it into U+FFFD. So the stream holds a run back until it ends or has
//! [`RUN_BYTES_MAX`] bytes.

use tokenizers::Decoder;

use super::spelling::{Spelling, parse_byte_token};
use super::{TokenError, Tokenizer};

/// Maximum bytes of a run held back: more than any character has, combined ones included, so that a
/// long text of bytes appears as it comes.
pub(super) const RUN_BYTES_MAX: usize = 64;

/// Tokens that a full window keeps. The last [`OPEN_LETTERS_MAX`] letters come from fewer tokens,
/// because each comes from at most three bytes.
const WINDOW_TOKENS_KEPT: usize = RUN_BYTES_MAX / 2;

/// Maximum number of U+FFFD that stand for an incomplete character at the end of a text: one, or
/// one for each of its bytes.
const OPEN_LETTERS_MAX: usize = 3;

/// Converts tokens to text one by one.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// Marks to keep in the text, although the tokeniser omits them.
    marks: Vec<u32>,
    decoding: PieceDecoding<'a>,
}

/// How tokens become text.
enum PieceDecoding<'a> {
    /// Bytes of an incomplete character.
    Bytes(Vec<u8>),
    /// Pieces, each by itself except runs of bytes.
    Pieces {
        spelling: Spelling<'a>,
        is_begun: bool,
        run: Vec<String>,
    },
    /// Each token after the previous ones: the decoder looks at neighbours.
    Window {
        /// At most [`RUN_BYTES_MAX`].
        tokens: Vec<String>,
        /// The part of their text that the stream has returned.
        decoded_text: String,
    },
}

impl<'a> TextStream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, marks: Vec<u32>) -> Self {
        let spelling = tokenizer.0.get_decoder().map(Spelling::new);
        let decoding = match spelling {
            Some(Ok(Spelling::Bytes)) => PieceDecoding::Bytes(Vec::new()),
            Some(Ok(spelling)) => PieceDecoding::Pieces {
                spelling,
                is_begun: false,
                run: Vec::new(),
            },
            None | Some(Err(_)) => PieceDecoding::Window {
                tokens: Vec::new(),
                decoded_text: String::new(),
            },
        };
        Self {
            tokenizer,
            marks,
            decoding,
        }
    }

    /// Returns the text that a token adds.
    ///
    /// # Errors
    /// [`TokenError::Decode`].
    pub fn push(&mut self, token: u32) -> Result<String, TokenError> {
        let Some(token) = self.tokenizer.visible_token(token, &self.marks) else {
            return Ok(String::new());
        };
        match &mut self.decoding {
            PieceDecoding::Bytes(held) => {
                held.extend(Spelling::Bytes.token_bytes(token)?);
                Ok(whole_characters(held))
            }
            PieceDecoding::Pieces {
                spelling,
                is_begun,
                run,
            } => {
                if spelling.has_bytes() && parse_byte_token(&token).is_some() {
                    run.push(token);
                    if run.len() < RUN_BYTES_MAX {
                        return Ok(String::new());
                    }
                    let rest = run.split_off(whole_tokens(run));
                    let begun = std::mem::replace(run, rest);
                    return spelling.decode_text(begun, is_begun);
                }
                let mut text = spelling.decode_text(std::mem::take(run), is_begun)?;
                text.push_str(&spelling.decode_text(vec![token], is_begun)?);
                Ok(text)
            }
            PieceDecoding::Window {
                tokens,
                decoded_text,
            } => {
                tokens.push(token);
                let text = decode_tokens(self.tokenizer, tokens.clone())?;
                let open = count_open_letters(&text);
                if open > 0 && tokens.len() < RUN_BYTES_MAX {
                    return Ok(String::new());
                }
                let new = new_suffix(decoded_text, without_last(&text, open)).to_owned();
                let kept = match open {
                    0 => 1,
                    _ => WINDOW_TOKENS_KEPT,
                };
                tokens.drain(..tokens.len() - kept);
                let text = decode_tokens(self.tokenizer, tokens.clone())?;
                *decoded_text = without_last(&text, open).to_owned();
                Ok(new)
            }
        }
    }

    /// Returns the text held back, after the last token.
    ///
    /// # Errors
    /// [`TokenError::Decode`].
    pub fn finish(self) -> Result<String, TokenError> {
        match self.decoding {
            PieceDecoding::Bytes(held) => Ok(String::from_utf8_lossy(&held).into_owned()),
            PieceDecoding::Pieces {
                spelling,
                mut is_begun,
                run,
            } => spelling.decode_text(run, &mut is_begun),
            PieceDecoding::Window {
                tokens,
                decoded_text,
            } => {
                let text = decode_tokens(self.tokenizer, tokens)?;
                Ok(new_suffix(&decoded_text, &text).to_owned())
            }
        }
    }
}

fn decode_tokens(tokenizer: &Tokenizer, tokens: Vec<String>) -> Result<String, TokenError> {
    match tokenizer.0.get_decoder() {
        // One of the decoders does not accept an empty list.
        _ if tokens.is_empty() => Ok(String::new()),
        Some(decoder) => decoder.decode(tokens).map_err(TokenError::Decode),
        None => Ok(tokens.join(" ")),
    }
}

/// Returns how many U+FFFD at the end of a text can become a character with more bytes.
fn count_open_letters(text: &str) -> usize {
    let letters = text.chars().rev().take(OPEN_LETTERS_MAX);
    letters
        .take_while(|letter| *letter == char::REPLACEMENT_CHARACTER)
        .count()
}

/// Returns a text without its last letters.
fn without_last(text: &str, letters: usize) -> &str {
    let mut text = text.chars();
    text.by_ref().rev().take(letters).for_each(drop);
    text.as_str()
}

/// Returns the part of a text after the given beginning, which it usually has.
fn new_suffix<'a>(known: &str, text: &'a str) -> &'a str {
    let mut letters = text.char_indices().zip(known.chars());
    let differs = letters.find(|((_, letter), known)| letter != known);
    let same = differs.map_or(known.len().min(text.len()), |((at, _), _)| at);
    &text[same..]
}

/// Takes all complete characters and leaves one that more bytes may complete. Invalid UTF-8 becomes
/// U+FFFD.
fn whole_characters(held: &mut Vec<u8>) -> String {
    let sure = held.len() - incomplete_suffix_length(held);
    let rest = held.split_off(sure);
    String::from_utf8_lossy(&std::mem::replace(held, rest)).into_owned()
}

/// Returns the number of bytes at the end that begin a character.
fn incomplete_suffix_length(bytes: &[u8]) -> usize {
    let last = bytes
        .utf8_chunks()
        .last()
        .map_or(&[][..], |it| it.invalid());
    match std::str::from_utf8(last) {
        Err(error) if error.error_len().is_none() => last.len(),
        _ => 0,
    }
}

/// Returns how many tokens of a long run to output: all complete characters, or all tokens if the
/// run has a wrong byte.
fn whole_tokens(run: &[String]) -> usize {
    let bytes: Vec<u8> = run
        .iter()
        .filter_map(|token| parse_byte_token(token))
        .collect();
    match std::str::from_utf8(&bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => run.len(),
    }
}
