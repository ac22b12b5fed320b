//! Which providers a configuration may have. A provider is a folder of this crate, with its [`ProviderConfig`], and a row
//! in a table here.

use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use surgetank_model::volume_type::{BilledTime, Credits, Performance, Provision, SizeLimits};
use surgetank_model::{Bandwidth, Bytes, Iops, Limits, VolumeType};
use toml::Spanned;

use crate::aws::AwsConfig;
use crate::azure::AzureConfig;
use crate::gce::GceConfig;
use crate::host::HostConfig;
use crate::local::LocalConfig;
use crate::openstack::OpenStackConfig;
use crate::pool::PoolConfig;
use crate::qemu::QemuConfig;
use crate::{Account, Provider, ProviderError};

/// What a configuration says of a provider.
pub trait ProviderConfig: Any + Debug + Send + Sync {
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

    /// The buckets of burst credits of a volume of this type and size, to which nobody holds it but its user. Full when
    /// the volume is created.
    ///
    /// # Errors
    /// `Invalid`: there is no such type.
    fn credits(&self, _volume_type: &str, _size: Bytes) -> Result<Vec<Credits>, ProviderError> {
        Ok(Vec::new())
    }

    /// How long a volume of this type is billed for.
    fn billed_time(&self, _volume_type: &str) -> BilledTime {
        BilledTime::default()
    }

    /// Looks whether [`ProviderConfig::open`] would fail, and changes nothing.
    ///
    /// # Errors
    /// As `open`.
    fn would_open(&self) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Why no volume can be rented, whatever its size, as far as that can be told without asking.
    fn rents_nothing(&self) -> Option<String> {
        None
    }

    /// Why no volume of this size can be rented, as far as that can be told without asking.
    fn has_no_room_for(&self, _size: Bytes) -> Option<String> {
        None
    }

    /// How many volumes can be rented and attached together, as far as that is known. `None`: only the provider knows.
    fn volumes_max(&self) -> Option<u32> {
        None
    }

    /// Opens the provider. `state`: a directory, of which whoever opens it is the only user, and where what must outlive a
    /// restart may be kept in a file whose name begins with the provider's. `None`: nothing is kept.
    ///
    /// # Errors
    /// `Invalid` if the configuration cannot be used, `Transient` if it cannot be used now.
    fn open(&self, state: Option<&Path>) -> Result<Arc<dyn Provider>, ProviderError>;

    /// Opens its account, for whoever looks at what all machines have rented there. `None`: it has none, and those who rent there sweep.
    ///
    /// # Errors
    /// As `open`.
    fn open_account(&self) -> Result<Option<Arc<dyn Account>>, ProviderError> {
        Ok(None)
    }
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

impl TypeLimits {
    /// Those of a type with what is bought with it.
    pub(crate) fn bought(known: &VolumeType, bought: &Provision) -> Self {
        let SizeLimits { min, max, .. } = known.size;
        // What is bought needs a size.
        let least = known.smallest(min, |size| known.check(size, bought).ok().map(|()| size));
        let limits = match known.performance {
            Performance::Provisioned { .. } => known.limits_with(max, bought),
            // They follow the size.
            _ => Limits::NONE,
        };
        let sizes = (least.unwrap_or(max), max);
        Self { sizes, bandwidth: limits.bandwidth, iops: limits.iops, throttle: false }
    }
}

/// A section beneath `[provider]`.
#[derive(Clone, Debug)]
pub struct Section {
    /// The provider's name.
    pub name: &'static str,
    /// What the file calls it: its name, or a former one.
    pub written: &'static str,
    /// Where it is in the file, in bytes.
    pub span: Range<usize>,
    /// What it says.
    pub config: Arc<dyn ProviderConfig>,
}

/// Declares a table of providers, and how their sections are read.
macro_rules! table {
    ($(#[$doc:meta])* $table:ident { $($written:ident: $config:ty => $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $table { $($written: Option<Spanned<$config>>,)+ }

        impl $table {
            /// What files may call the providers, and their names.
            pub const NAMES: &'static [(&'static str, &'static str)] = &[$((stringify!($written), $name)),+];

            /// The sections in the order of the table.
            #[must_use]
            pub fn sections(self) -> Vec<Section> {
                let sections = [$(self.$written.map(|read| Section {
                    name: $name,
                    written: stringify!($written),
                    span: read.span(),
                    config: Arc::new(read.into_inner()),
                }),)+];
                sections.into_iter().flatten().collect()
            }
        }
    };
}

table! {
    /// The providers from which a daemon rents.
    Rented {
        local: LocalConfig => "local",
        host: HostConfig => "host",
        qemu: HostConfig => "host",
        openstack: OpenStackConfig => "openstack",
        gce: GceConfig => "gce",
        gcp: GceConfig => "gce",
        aws: AwsConfig => "aws",
        azure: AzureConfig => "azure",
        pool: PoolConfig => "pool",
    }
}

table! {
    /// The providers whose volumes a provisioning service rents out.
    Served {
        local: LocalConfig => "local",
        qemu: QemuConfig => "qemu",
    }
}
