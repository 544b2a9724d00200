//! Defines the card of an endpoint (a provider that sells text by the token): the model that its
//! ask sells, and the rule by which both sides count tokens. A tab has no graph, so its receipt
//! names the id of the card where others name the graph.

use std::fmt;

use serde::{Deserialize, Serialize};
use souk_market::{CountingRule, KindCode, Name, NameFault, Resources, TokenTerms};
use souk_memory::ContentId;

/// The kind code from which on a kind is a model behind an endpoint, and no device. The other 15
/// bits come from the card's id, so each model has its own book.
const ENDPOINT_KINDS: u16 = 0x8000;

/// The kind's name in the ask of an engine that the provider runs, and of one where the provider
/// has an account. It is a label: the book and the card are the same.
const OWN_ENGINE: &str = "endpoint";
const RESOLD_ENGINE: &str = "resold endpoint";

/// A model as an endpoint sells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextCard {
    /// The name by which the engine knows the model, for example `qwen/qwen3-8b`.
    pub model: Name,
    /// How tokens are counted.
    pub counting: CountingRule,
}

impl TextCard {
    /// Creates the card of a model whose tokens are four bytes each.
    ///
    /// # Errors
    /// When the model's name is longer than 64 bytes or holds a control character.
    pub fn new(model: &str) -> Result<TextCard, NameFault> {
        Ok(TextCard {
            model: Name::try_from(model)?,
            counting: CountingRule::FourBytes,
        })
    }

    /// Returns the card's bytes, whose hash is its id.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("plain data in memory always encodes")
    }

    /// Returns the id that the start of a tab and its receipt name as the graph.
    #[must_use]
    pub fn id(&self) -> ContentId {
        ContentId::for_content(&self.to_bytes())
    }

    /// Returns the kind code of the book in which the model is traded.
    #[must_use]
    pub fn kind(&self) -> KindCode {
        let id = self.id();
        let [low, high, ..] = *id.as_bytes();
        KindCode(ENDPOINT_KINDS | u16::from_le_bytes([low, high]))
    }

    /// Returns whether an ask with these resources sells this model. Two models can share a book,
    /// but not a name.
    #[must_use]
    pub fn is_sold_by(&self, resources: &Resources) -> bool {
        let is_counted_so = |terms: &TokenTerms| terms.counting == self.counting;
        resources.kind == self.kind()
            && resources.model == self.model
            && resources.tokens.as_ref().is_some_and(is_counted_so)
    }

    /// Returns the card that an ask sells; none if the ask sells a device.
    #[must_use]
    pub fn of_resources(resources: &Resources) -> Option<TextCard> {
        let card = TextCard {
            model: resources.model.clone(),
            counting: resources.tokens?.counting,
        };
        card.is_sold_by(resources).then_some(card)
    }

    /// Returns the resources that the ask of an endpoint states: a model and terms, and no device.
    #[must_use]
    pub fn to_resources(&self, terms: TokenTerms) -> Resources {
        Resources {
            kind: self.kind(),
            kind_name: Name::try_from(OWN_ENGINE).expect("a short name"),
            model: self.model.clone(),
            tokens: Some(TokenTerms {
                counting: self.counting,
                ..terms
            }),
            ..Resources::default()
        }
    }

    /// Returns the resources of an ask that says that the provider does not run the engine.
    #[must_use]
    pub fn to_resold_resources(&self, terms: TokenTerms) -> Resources {
        Resources {
            kind_name: Name::try_from(RESOLD_ENGINE).expect("a short name"),
            ..self.to_resources(terms)
        }
    }
}

/// Returns whether an ask states that the provider resells another engine. Nobody can check this.
#[must_use]
pub fn is_resold(resources: &Resources) -> bool {
    resources.kind_name.as_str() == RESOLD_ENGINE
}

impl fmt::Display for TextCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.model.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_model_has_its_own_book_and_an_ask_names_its_model() {
        let (one, other) = (TextCard::new("qwen/qwen3-8b"), TextCard::new("gpt-oss-20b"));
        let (one, other) = (one.unwrap(), other.unwrap());
        assert!(one.kind().0 >= ENDPOINT_KINDS);
        assert_ne!(one.kind(), other.kind());
        let sold = one.to_resources(TokenTerms::USUAL);
        assert!(one.is_sold_by(&sold) && !other.is_sold_by(&sold));
        assert_eq!(TextCard::of_resources(&sold), Some(one.clone()));
        let resold = one.to_resold_resources(TokenTerms::USUAL);
        assert_eq!(TextCard::of_resources(&resold), Some(one.clone()));
        assert!(is_resold(&resold) && !is_resold(&sold));
        // Another kind with the name of a model is a device that calls itself so.
        let device = Resources {
            kind: KindCode(3),
            ..sold.clone()
        };
        assert_eq!(TextCard::of_resources(&device), None);
        // So is one without terms of tokens.
        let device = Resources {
            tokens: None,
            ..sold
        };
        assert_eq!(TextCard::of_resources(&device), None);
        assert!(TextCard::new(&"x".repeat(65)).is_err());
    }
}
