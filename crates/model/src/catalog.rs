//! The volume types that surgetank knows.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::volume_type::{Billing, VolumeType};

/// A list of volume types.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalog {
    types: Vec<VolumeType>,
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
    volume_type: Vec<VolumeType>,
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
        if file.schema != 1 {
            return Err(CatalogError(format!("the catalog has schema {}: this program reads schema 1", file.schema)));
        }
        let mut catalog = Self { types: file.volume_type };
        for index in 0..catalog.types.len() {
            let this = &catalog.types[index];
            let key = this.key();
            if catalog.types[..index].iter().any(|other| other.key() == key) {
                return Err(CatalogError(format!("the catalog lists {key} twice: remove one")));
            }
            let price = match (&this.price, &this.price_of) {
                (None, Some(other)) => {
                    let price = catalog.by_key(other).and_then(|other| other.price.clone());
                    Some(price.ok_or_else(|| {
                        CatalogError(format!("{key} takes its price from {other}, which has none in the catalog"))
                    })?)
                }
                (own, _) => own.clone(),
            };
            let billing = file.billing.get(&this.provider).cloned();
            let this = &mut catalog.types[index];
            this.price = price;
            if let Some(billing) = billing {
                this.billing = billing;
            }
        }
        Ok(catalog)
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
