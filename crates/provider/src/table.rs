//! Which providers a configuration may have. A provider is a folder of this crate, with its [`ProviderConfig`], and a row
//! in a table here.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use surgetank_model::{Bandwidth, Bytes, Iops};
use toml::Spanned;

use crate::host::HostConfig;
use crate::local::LocalConfig;
use crate::qemu::QemuConfig;
use crate::{Provider, ProviderError};

/// What a configuration says of a provider.
pub trait ProviderConfig: Any + fmt::Debug + Send + Sync {
    /// Checks what can be checked without a look at the machine.
    ///
    /// # Errors
    /// One sentence with the remedy.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// The directory in which it keeps volumes as files of this machine. `None`: its volumes are disks.
    fn directory(&self) -> Option<&Path>;

    /// What is known of a type of volumes before one is rented.
    ///
    /// # Errors
    /// `Invalid`: there is no such type.
    fn type_limits(&self, volume_type: &str) -> Result<TypeLimits, ProviderError>;

    /// Opens the provider.
    ///
    /// # Errors
    /// `Invalid` if the configuration cannot be used, `Transient` if it cannot be used now.
    fn open(&self) -> Result<Arc<dyn Provider>, ProviderError>;
}

/// What is known of a type of volumes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TypeLimits {
    /// The smallest and the largest volume.
    pub sizes: (Bytes, Bytes),
    /// `None`: only the provider knows.
    pub bandwidth: Option<Bandwidth>,
    /// `None`: no limit, or only the provider knows.
    pub iops: Option<Iops>,
    /// Whether nobody holds a volume to its limits but its user.
    pub throttle: bool,
}

/// Declares a table of providers: names, former names, and how their sections are read.
macro_rules! table {
    ($(#[$doc:meta])* $table:ident { $($name:literal $(formerly $former:literal)? => $config:ty,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $table {}

        impl Table for $table {
            const NAMES: &'static [&'static str] = &[$($name),+];
            const FORMER: &'static [(&'static str, &'static str)] = &[$($(($former, $name),)?)+];

            fn read<'de, A: MapAccess<'de>>(name: &str, map: &mut A) -> Result<Read, A::Error> {
                match name {
                    $($name => map.next_value::<Spanned<$config>>().map(|read| (read.span(), Arc::new(read.into_inner()) as _)),)+
                    other => Err(A::Error::unknown_field(other, Self::NAMES)),
                }
            }
        }
    };
}

table! {
    /// The providers from which a daemon rents.
    Rented {
        "local" => LocalConfig,
        "host" formerly "qemu" => HostConfig,
    }
}

table! {
    /// The providers whose volumes a provisioning service rents out.
    Served {
        "local" => LocalConfig,
        "qemu" => QemuConfig,
    }
}

/// A section's place in its file, in bytes, and what it says.
type Read = (Range<usize>, Arc<dyn ProviderConfig>);

/// A table of providers.
pub trait Table {
    /// The names of its providers.
    const NAMES: &'static [&'static str];
    /// Former names that are still read, each with the name of today.
    const FORMER: &'static [(&'static str, &'static str)];

    /// Reads the section of this name.
    ///
    /// # Errors
    /// What is wrong with it.
    fn read<'de, A: MapAccess<'de>>(name: &str, map: &mut A) -> Result<Read, A::Error>;

    /// The name of today of a provider.
    #[must_use]
    fn name_of(written: &str) -> Option<&'static str> {
        let former = || Self::FORMER.iter().find(|(former, _)| *former == written).map(|(_, name)| *name);
        Self::NAMES.iter().copied().find(|name| *name == written).or_else(former)
    }
}

/// A section beneath `[provider]`.
#[derive(Clone, Debug)]
pub struct Section {
    /// The provider's name of today.
    pub name: &'static str,
    /// Its name in the file.
    pub written: String,
    /// Where it is in the file, in bytes.
    pub span: Range<usize>,
    /// What it says.
    pub config: Arc<dyn ProviderConfig>,
}

/// All sections beneath `[provider]`, by their names of today.
#[derive(Clone, Debug)]
pub struct Sections<T>(pub Vec<Section>, PhantomData<T>);

impl<T> Default for Sections<T> {
    fn default() -> Self {
        Self(Vec::new(), PhantomData)
    }
}

impl<T: Table> Sections<T> {
    /// What a provider's section would say if it were empty: some providers need none.
    ///
    /// # Errors
    /// What it must say.
    pub fn absent(name: &str) -> Result<Arc<dyn ProviderConfig>, String> {
        let read: Result<Self, _> = toml::from_str(&format!("[{name}]"));
        let Self(mut sections, _) = read.map_err(|error| error.message().replace('`', "\""))?;
        sections.pop().map(|section| section.config).ok_or_else(|| "there is no such provider".to_owned())
    }
}

/// The name of a section.
struct Name<T>(&'static str, String, PhantomData<T>);

impl<'de, T: Table> Deserialize<'de> for Name<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = String::deserialize(deserializer)?;
        let name = T::name_of(&written).ok_or_else(|| D::Error::unknown_field(&written, T::NAMES))?;
        Ok(Self(name, written, PhantomData))
    }
}

impl<'de, T: Table> Deserialize<'de> for Sections<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self::default())
    }
}

impl<'de, T: Table> Visitor<'de> for Sections<T> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a map")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some(Name::<T>(name, written, _)) = map.next_key()? {
            let (span, config) = T::read(name, &mut map)?;
            self.0.push(Section { name, written, span, config });
        }
        self.0.sort_by_key(|section| (section.name, section.span.start));
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sections<T: Table>(text: &str) -> Vec<Section> {
        toml::from_str::<Sections<T>>(text).unwrap().0
    }

    #[test]
    fn a_section_has_its_name_of_today_its_place_and_what_it_says() {
        let host = "url = \"http://127.0.0.1:1\"\ntoken_file = \"/t\"\n";
        for written in ["host", "qemu"] {
            let found = sections::<Rented>(&format!("[{written}]\n{host}[local]\ndirectory = \"/v\"\n"));
            let names: Vec<_> = found.iter().map(|section| (section.name, &*section.written)).collect();
            assert_eq!(names, [("host", written), ("local", "local")]);
            assert_eq!((found[0].span.start, found[0].config.directory()), (0, None));
            assert_eq!(found[1].config.directory(), Some(Path::new("/v")));
        }
        assert_eq!(sections::<Served>("[qemu]\nqmp = \"/q\"")[0].name, "qemu");
        let error = toml::from_str::<Sections<Rented>>("[local]\n[lokal]").unwrap_err();
        assert!(error.message().starts_with("unknown field `lokal`"), "{error}");
        assert_eq!(error.span(), Some(9..14));
        assert!(Sections::<Rented>::absent("local").is_ok());
        assert!(Sections::<Rented>::absent("host").unwrap_err().contains("\"url\""));
    }
}
