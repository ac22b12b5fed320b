//! What an account has of rented volumes, whichever machine has rented them: for whoever cleans it up.

use surgetank_model::account::{AccountVolume, Named};

use crate::{Provider, ProviderError, Tags, VolumeId, tag};

/// A provider that can tell of volumes of other machines, and of those machines. Through it volumes are deleted as a machine deletes its own.
pub trait Account: Provider {
    /// What the catalog of volume types, where prices are, calls the provider; `None`: it knows no prices of it.
    fn catalog_name(&self) -> Option<&'static str>;

    /// All volumes that have an owner's tag, also those of releases that set fewer tags than this one. As every list it may lag behind:
    /// it finds volumes, and proves nothing of them.
    ///
    /// # Errors
    /// See [`ProviderError`].
    fn volumes(&self) -> Result<Vec<AccountVolume>, ProviderError>;

    /// One of them as it is now, by no look of a moment ago; `None`: there is no such volume.
    ///
    /// # Errors
    /// See [`ProviderError`].
    fn volume(&self, id: &VolumeId) -> Result<Option<AccountVolume>, ProviderError>;

    /// Who has the name of a machine now. Only the provider's own words that nobody has it are [`Named::Nobody`].
    ///
    /// # Errors
    /// It cannot be told: see [`ProviderError`].
    fn machine(&self, name: &str) -> Result<Named, ProviderError>;
}

/// The tags that only whoever cleans up reads, which no caller has set or is shown.
const OF_ACCOUNT: [&str; 2] = [tag::MANAGED, tag::HOST];

/// What callers are shown of tags.
pub(crate) fn shown(mut tags: Tags) -> Tags {
    tags.retain(|key, _| !OF_ACCOUNT.contains(&&**key));
    tags
}

/// Whether a tag that is set says that this machine takes the volume over, which is the machine of its marks from then on.
pub(crate) fn takes_over(key: &str, value: Option<&str>) -> bool {
    key == tag::OWNER && value.is_some()
}

/// What is set with the tags of a creation on this machine.
pub(crate) fn marks(host: &str) -> [(String, String); 2] {
    [(tag::MANAGED.to_owned(), "true".to_owned()), (tag::HOST.to_owned(), host.to_owned())]
}
