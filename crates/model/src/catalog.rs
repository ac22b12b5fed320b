//! The volume types that surgetank knows.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use crate::in_place::Modification;
use crate::toml_error::{ConfigError, Source};
use crate::units::Span;
use crate::volume_type::{Billing, Price, VolumeType};

/// A list of volume types, and what is known of their providers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalog {
    types: Vec<VolumeType>,
    providers: BTreeMap<String, Provider>,
}

/// What is known of a provider beside its volume types.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    /// For people.
    #[serde(default)]
    pub title: String,
    /// How volumes can be changed in place, and how often.
    pub modification: Option<Modification>,
    /// How many volumes a machine can have.
    pub attachments: Option<Attachments>,
    /// How long calls take.
    pub latency: Option<ProviderLatency>,
}

/// How many volumes a machine can have beside its root.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attachments {
    /// On usual machines.
    pub most: u32,
    /// How that was found.
    pub says: String,
    /// From where.
    pub source: String,
    /// Date of the source; absent: undated.
    pub as_of: Option<String>,
    /// How sure it is.
    pub confidence: String,
}

/// How long a provider's calls take. What is absent is unknown.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderLatency {
    /// From the call to the available volume.
    pub create: Option<Span>,
    /// From the call until the guest has the disk.
    pub attach: Option<Span>,
    /// From the call until the guest no longer has it.
    pub detach: Option<Span>,
    /// What the figures are.
    pub says: String,
    /// From where.
    pub source: String,
    /// Date of the source; absent: undated.
    pub as_of: Option<String>,
    /// How sure they are.
    pub confidence: String,
}

/// Why a catalog cannot be read. One sentence; syntax errors name line and column.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CatalogError(pub String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: u32,
    #[serde(default)]
    billing: BTreeMap<String, Billing>,
    #[serde(default)]
    provider: BTreeMap<String, Provider>,
    #[serde(default)]
    volume_type: Vec<VolumeType>,
    #[serde(default)]
    price: BTreeMap<Spanned<String>, Price>,
}

impl Catalog {
    /// The catalog that is part of the program.
    #[must_use]
    pub fn builtin() -> Self {
        Self::parse(include_str!("catalog.toml")).expect("a test reads it")
    }

    /// Reads a catalog file. `price_of` is resolved and providers' billing is filled in.
    ///
    /// # Errors
    /// If it is not such a file, if a type is listed twice, or if `price_of` names no type with a price.
    pub fn parse(text: &str) -> Result<Self, CatalogError> {
        let file: File = toml::from_str(text).map_err(|error| CatalogError(error.to_string()))?;
        let mut catalog = Self::default();
        catalog.add(file).map_err(|(_, message)| CatalogError(message))?;
        Ok(catalog)
    }

    /// This catalog with another file on top: its types and providers replace those of the same name, sections
    /// such as `[price."aws/gp3"]` replace prices alone.
    ///
    /// # Errors
    /// The first thing wrong with the file, with file, line and column.
    pub fn with_file(&self, source: &Source) -> Result<Self, ConfigError> {
        let mut catalog = self.clone();
        catalog.add(source.parse::<File>()?).map_err(|(span, message)| source.at(span, message))?;
        Ok(catalog)
    }

    fn add(&mut self, mut file: File) -> Result<(), Misplaced> {
        if file.schema != 1 {
            return Err((None, format!("the catalog has schema {}: this program reads schema 1", file.schema)));
        }
        let whole = |message| (None, message);
        for index in 0..file.volume_type.len() {
            let key = file.volume_type[index].key();
            if file.volume_type[..index].iter().any(|other| other.key() == key) {
                return Err(whole(format!("the catalog lists {key} twice: remove one")));
            }
        }
        self.providers.append(&mut file.provider);
        for mut volume_type in file.volume_type {
            let key = volume_type.key();
            let place = self.types.iter().position(|known| known.key() == key);
            let billing = file.billing.get(&volume_type.provider).cloned();
            let known = self.types.iter().find(|known| known.provider == volume_type.provider);
            volume_type.billing = billing.or(known.map(|known| known.billing.clone())).unwrap_or(volume_type.billing);
            check_price(&key, volume_type.price.as_ref()).map_err(whole)?;
            match place {
                Some(place) => self.types[place] = volume_type,
                None => self.types.push(volume_type),
            }
        }
        for (key, price) in file.price {
            let (span, key) = (key.span(), key.into_inner());
            check_price(&key, Some(&price)).map_err(|message| (Some(span.clone()), message))?;
            let known = self.types.iter_mut().find(|known| known.key() == key);
            let known =
                known.ok_or_else(|| (Some(span), format!("there is no volume type {key} to give a price to")))?;
            known.price = Some(match &known.price {
                Some(listed) => price.over(listed),
                None => price,
            });
        }
        self.take_prices().map_err(whole)
    }

    /// Resolves `price_of`.
    fn take_prices(&mut self) -> Result<(), String> {
        for index in 0..self.types.len() {
            let this = &self.types[index];
            let (None, Some(other)) = (&this.price, &this.price_of) else { continue };
            let price = self.by_key(other).and_then(|other| other.price.clone());
            let price = price
                .ok_or_else(|| format!("{} takes its price from {other}, which has none in the catalog", this.key()))?;
            self.types[index].price = Some(price);
        }
        Ok(())
    }

    /// What is known of a provider.
    #[must_use]
    pub fn provider(&self, name: &str) -> Option<&Provider> {
        self.providers.get(name)
    }

    /// All types, in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = &VolumeType> {
        self.types.iter()
    }

    /// The type of this provider and name.
    #[must_use]
    pub fn find(&self, provider: &str, name: &str) -> Option<&VolumeType> {
        self.types.iter().find(|this| this.provider == provider && this.name == name)
    }

    fn by_key(&self, key: &str) -> Option<&VolumeType> {
        let (provider, name) = key.split_once('/')?;
        self.find(provider, name)
    }
}

/// What is wrong, and where.
type Misplaced = (Option<std::ops::Range<usize>>, String);

fn check_price(key: &str, price: Option<&Price>) -> Result<(), String> {
    match price {
        Some(price) if !price.is_sound() => {
            Err(format!("a price of {key} is no number, or negative: leave it out if it is unknown"))
        }
        Some(price) if !price.sizes_ascend() => Err(format!(
            "billed_sizes of {key} are zero or do not ascend: write each size once, from the smallest to the largest"
        )),
        _ => Ok(()),
    }
}
