//! Names the topics that clients of the event stream can follow, such as `market` or `job:NAME`,
//! and parses those names.

use souk_api::class_name;
use souk_node::market::{AccountKey, Class};

/// A topic that a client follows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// The summary of the classes.
    Market,
    /// The book of a class.
    Depth(Class),
    /// The last trades of a class.
    Trades(Class),
    /// The map of the network.
    Network,
    /// The state of the validators.
    Validators,
    /// An account and its offers.
    Provider(AccountKey),
    /// The gateway's own account.
    Account,
    /// The state of all jobs.
    Jobs,
    /// The events of one job.
    Job(String),
}

impl Topic {
    /// Parses the name of a topic; a class must have its whole name.
    pub fn parse(text: &str) -> Option<Topic> {
        Some(match text.split_once(':') {
            None => match text {
                "market" => Topic::Market,
                "network" => Topic::Network,
                "validators" => Topic::Validators,
                "account" => Topic::Account,
                "jobs" => Topic::Jobs,
                _ => return None,
            },
            Some(("depth", class)) => Topic::Depth(class_name::parse_class(class)?),
            Some(("trades", class)) => Topic::Trades(class_name::parse_class(class)?),
            Some(("provider", account)) => Topic::Provider(account.parse().ok()?),
            Some(("job", name)) => Topic::Job(name.to_owned()),
            Some(_) => return None,
        })
    }
}

impl std::fmt::Display for Topic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Topic::Market => f.write_str("market"),
            Topic::Network => f.write_str("network"),
            Topic::Validators => f.write_str("validators"),
            Topic::Provider(account) => write!(f, "provider:{account}"),
            Topic::Account => f.write_str("account"),
            Topic::Jobs => f.write_str("jobs"),
            Topic::Job(name) => write!(f, "job:{name}"),
            Topic::Depth(class) => write!(f, "depth:{}", class_name::format_class(class)),
            Topic::Trades(class) => write!(f, "trades:{}", class_name::format_class(class)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_written_as_it_is_read() {
        for text in [
            "market",
            "account",
            "network",
            "validators",
            &format!("provider:{}", AccountKey([7; 32])),
            "jobs",
            "job:b1d8316abfce",
            "depth:gpu-m5-t7-b6-emulated",
        ] {
            assert_eq!(Topic::parse(text).unwrap().to_string(), text);
        }
        for none in [
            "",
            "money",
            "depth:",
            "depth:gpu",
            "provider:x",
            "book:gpu-m5-t7-b6",
        ] {
            assert_eq!(Topic::parse(none), None);
        }
    }
}
