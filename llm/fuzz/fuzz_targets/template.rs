//! Any text as a chat template: a conversation or a refusal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use souk_llm::chat::{ChatTemplate, Conversation, Message};

fuzz_target!(|source: &str| {
    let template = ChatTemplate {
        source: source.to_owned(),
        ..ChatTemplate::default()
    };
    let message = Message {
        role: "user".to_owned(),
        content: "hello".to_owned(),
        ..Message::default()
    };
    let _ = template.render(&Conversation {
        messages: &[message],
        ..Conversation::default()
    });
});
