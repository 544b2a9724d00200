//! A small HTTP/1.1 client for the tests, with one request for each connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// How long an answer may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// A gateway, and the token that is shown to it.
pub struct Client {
    pub address: String,
    pub token: String,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    /// The JSON it holds.
    pub fn json(&self) -> Value {
        let read = serde_json::from_slice(&self.body);
        read.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The JSON of an answer that must have this status.
    pub fn of(&self, status: u16) -> Value {
        assert_eq!(
            self.status,
            status,
            "{}",
            String::from_utf8_lossy(&self.body)
        );
        self.json()
    }

    /// A header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl Client {
    /// Asks with the token.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let token = format!("Bearer {}", self.token);
        let all = [
            &[("host", self.address.as_str()), ("authorization", &token)],
            headers,
        ]
        .concat();
        raw(&self.address, method, path, &all, body).expect("the gateway answers")
    }

    /// Asks for something.
    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], &[])
    }

    /// Sends JSON.
    pub fn post(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let headers = [&[("content-type", "application/json")], headers].concat();
        self.ask("POST", path, &headers, body.to_string().as_bytes())
    }

    /// Follows topics; each event with its id, its topic and what it holds.
    pub fn follow(&self, topics: &str, last: Option<&str>) -> impl Iterator<Item = Event> + use<> {
        let path = format!("/v1/events?topics={topics}");
        let token = format!("Bearer {}", self.token);
        let mut headers = vec![("host", self.address.as_str()), ("authorization", &token)];
        headers.extend(last.map(|last| ("last-event-id", last)));
        let mut stream = asked(&self.address, "GET", &path, &headers, &[]).expect("it listens");
        let (status, _) = head(&mut stream).expect("the gateway answers");
        assert_eq!(status, 200, "{topics}");
        let mut event = Event::default();
        let mut lines = stream.lines();
        std::iter::from_fn(move || {
            loop {
                // Sizes of chunks and empty lines between say nothing.
                let line = lines.next()?.ok()?;
                match line.split_once(": ") {
                    Some(("id", id)) => event.id = id.to_owned(),
                    Some(("event", topic)) => event.topic = topic.to_owned(),
                    Some(("data", data)) => {
                        event.data = serde_json::from_str(data).expect("events are JSON");
                    }
                    _ if event.topic.is_empty() => {}
                    _ => return Some(std::mem::take(&mut event)),
                }
            }
        })
    }
}

/// Something that happened.
#[derive(Debug, Default)]
pub struct Event {
    pub id: String,
    pub topic: String,
    pub data: Value,
}

/// Asks with these headers alone; none where the connection is closed without an answer.
pub fn raw(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Option<Answer> {
    let mut stream = asked(address, method, path, headers, body).ok()?;
    let (status, headers) = head(&mut stream)?;
    let mut body = Vec::new();
    // One that is cut short is shorter than its length says, which the tests see.
    let _ = stream.read_to_end(&mut body);
    Some(Answer {
        status,
        headers,
        body,
    })
}

/// Asks, and leaves the answer to be read.
pub fn asked(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if !headers.iter().any(|(name, _)| *name == "content-length") {
        text += &format!("content-length: {}\r\n", body.len());
    }
    text += "\r\n";
    stream.write_all(text.as_bytes())?;
    stream.write_all(body)?;
    Ok(BufReader::new(stream))
}

fn head(stream: &mut impl BufRead) -> Option<(u16, Vec<(String, String)>)> {
    let mut lines = stream.lines().map_while(Result::ok);
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| {
            let (name, value) = line.split_once(": ")?;
            Some((name.to_lowercase(), value.to_owned()))
        });
    Some((status, headers.collect()))
}
