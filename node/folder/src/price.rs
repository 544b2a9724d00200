//! Changes the price in a provider's file, even while the provider runs. `souk provider price`
//! calls it.

use std::path::{Path, PathBuf};
use std::{fs, io};

use souk_market::AccountKey;

use super::config::{self, ConfigError, KEY_FILE, PROVIDER_FILE, PROVIDER_TOML, ProviderFile};
use super::key::NodeKey;
use super::pricing::Strategy;

/// Why a price could not be set.
#[derive(Debug, thiserror::Error)]
pub enum PriceError {
    /// The provider's file could not be read or written.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The strategy determines the price, so `price` has no effect.
    #[error("{path} makes the price by the strategy of its [pricing], not by `price`")]
    Made {
        /// The provider's file.
        path: PathBuf,
    },
}

/// Replaces the price of a device-second, in micro-credits, in the file of the provider in
/// `folder`, and leaves the rest of the file as it is; returns the price until now. A running
/// provider will adopt it when it next examines the market.
///
/// # Errors
/// [`PriceError`] if the file does not exist, cannot be read or written, or computes the price
/// otherwise.
pub fn set_price(folder: &Path, price: u64) -> Result<u64, PriceError> {
    let mut file = ProviderFile::read_folder(folder)?;
    let until_now = std::mem::replace(&mut file.price, price);
    let toml = folder.join(PROVIDER_TOML);
    let is_toml = toml.exists();
    let path = if is_toml {
        toml
    } else {
        folder.join(PROVIDER_FILE)
    };
    if file.pricing.strategy != Strategy::Fixed {
        return Err(PriceError::Made { path });
    }
    if !is_toml {
        config::write(&path, &file)?;
        return Ok(until_now);
    }
    let failed = |source: io::Error| ConfigError::File {
        path: path.clone(),
        source,
    };
    let text = fs::read_to_string(&path).map_err(failed)?;
    let text = with_price(&text, price);
    // The new text must parse before it replaces the file.
    ProviderFile::parse_toml(&path, &text)?;
    let draft = path.with_extension("toml.new");
    fs::write(&draft, text).map_err(failed)?;
    fs::rename(&draft, &path).map_err(failed)?;
    Ok(until_now)
}

/// Returns the folder of the provider with this account: `folder` itself, or one directly below it.
#[must_use]
pub fn folder_of(folder: &Path, account: AccountKey) -> Option<PathBuf> {
    let below = fs::read_dir(folder).into_iter().flatten().flatten();
    let all = std::iter::once(folder.to_owned()).chain(below.map(|entry| entry.path()));
    let is_provider = |home: &PathBuf| {
        let has = |name| home.join(name).exists();
        (has(PROVIDER_TOML) || has(PROVIDER_FILE))
            && NodeKey::load(&home.join(KEY_FILE)).is_ok_and(|key| key.public_key() == account.0)
    };
    all.into_iter().find(is_provider)
}

/// Returns the text with this price in place of its own, which comes before the first table.
fn with_price(text: &str, price: u64) -> String {
    let is_price = |line: &str| {
        let rest = line.strip_prefix("price");
        rest.is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    let (mut is_top, mut written) = (true, String::new());
    for line in text.split_inclusive('\n') {
        is_top &= !line.starts_with('[');
        if is_top && is_price(line) {
            let comment = line.find('#').map_or("\n", |place| &line[place..]);
            let gap = if comment == "\n" { "" } else { " " };
            written += &format!("price = {price}{gap}{comment}");
        } else {
            written += line;
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# A device-second.
format = 1
name = \"p\"
listen = \"/ip4/127.0.0.1/tcp/0\"
price = 7 # cheap
[device.cpu]
threads = 1
[limits]
price_min = 2
";

    #[test]
    fn a_price_is_set_and_all_else_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(PROVIDER_TOML);
        fs::write(&path, TEXT).unwrap();
        assert_eq!(set_price(folder.path(), 9).unwrap(), 7);
        let expected = TEXT.replace("price = 7 # cheap", "price = 9 # cheap");
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        assert_eq!(ProviderFile::read_folder(folder.path()).unwrap().price, 9);
        fs::write(&path, TEXT.replace(" # cheap", "")).unwrap();
        assert_eq!(set_price(folder.path(), 10).unwrap(), 7);
        assert_eq!(set_price(folder.path(), 11).unwrap(), 10);
    }

    #[test]
    fn a_price_that_would_not_be_asked_is_not_set() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(PROVIDER_TOML);
        let text = format!("{TEXT}[pricing.strategy.follow]\npercent = 90\n");
        fs::write(&path, &text).unwrap();
        let refused = set_price(folder.path(), 9);
        assert!(
            matches!(refused, Err(PriceError::Made { .. })),
            "{refused:?}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn a_price_is_set_in_a_testnets_file_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(PROVIDER_TOML);
        let file = ProviderFile::parse_toml(&path, TEXT).unwrap();
        config::write(&folder.path().join(PROVIDER_FILE), &file).unwrap();
        assert_eq!(set_price(folder.path(), 9).unwrap(), 7);
        assert_eq!(ProviderFile::read_folder(folder.path()).unwrap().price, 9);
    }

    #[test]
    fn a_provider_is_found_by_its_key_and_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("seller");
        fs::create_dir(&home).unwrap();
        let key = NodeKey::load_or_create(&home.join(KEY_FILE)).unwrap();
        let account = AccountKey(key.public_key());
        assert_eq!(folder_of(folder.path(), account), None, "it sells nothing");
        fs::write(home.join(PROVIDER_TOML), TEXT).unwrap();
        assert_eq!(folder_of(folder.path(), account), Some(home.clone()));
        assert_eq!(folder_of(&home, account), Some(home));
        assert_eq!(folder_of(folder.path(), AccountKey([1; 32])), None);
    }
}
